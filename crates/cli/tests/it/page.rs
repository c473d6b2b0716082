//! `hammerhead bench --html`: one page of what was measured, with records of before and of others beside it.

use std::path::Path;

use crate::common::{assert_refused, hammerhead, page, succeed};

fn bench<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["bench", "--shape", "3,5x40x64", "--shape", "256x4096x64", "--seconds", "0.01"], more].concat()
}

#[test]
fn a_page_shows_this_run_and_a_record_of_before_beside_it() {
    let (json, html) = (page("before.json"), page("bench.html"));
    let (json, html) = (json.to_str().unwrap(), html.to_str().unwrap());
    succeed(bench(&["--export", json]));
    succeed(bench(&["--html", html, "--against", json]));
    let page = std::fs::read_to_string(html).unwrap();
    for part in ["[3,5]×40×64", "256×4096×64", "hammerhead nvfp4", "(before)", "<h4>cold</h4>", "<h4>warm</h4>"] {
        assert!(page.contains(part), "no {part:?}");
    }
    // Two problems by two clocks, in this run and in the one before.
    assert_eq!(page.matches("<svg class=\"bar\"").count(), 8);
    assert_eq!(page.matches("<tr><td>").count(), 8, "every bar's numbers are in the table");
    assert_eq!(page.matches("class=\"whisker\"").count(), 3 * 8, "a line and its two ends");
    assert_eq!(page.matches("<line class=\"floor\"").count(), 8);
    for known in ["of the floor</p>", "<dt>date</dt>", "<dt>ceilings</dt>", "<code>hammerhead bench --shape 3,5x40x64 "]
    {
        assert!(page.contains(known), "no {known:?}");
    }
}

#[test]
fn peers_of_other_problems_are_counted_and_left_out() {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/h200/peers.json");
    let html = page("peers.html");
    succeed(bench(&["--html", html.to_str().unwrap(), "--against", peers.to_str().unwrap()]));
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("NVIDIA H200") && page.contains("problems that this run does not have"), "{page}");
}

#[test]
fn what_is_no_record_is_refused_before_anything_is_measured() {
    let (html, wrong) = (page("refused.html"), page("wrong.json"));
    let against = |path: &Path| {
        hammerhead(["bench".as_ref(), "--html".as_ref(), html.as_os_str(), "--against".as_ref(), path.as_os_str()])
    };
    assert_refused(&against(Path::new("/no such record.json")), &["/no such record.json", "bench --export"]);
    std::fs::write(&wrong, r#"{"cases": []}"#).unwrap();
    assert_refused(&against(&wrong), &["wrong.json", "no timed case", "beside.py"]);
    assert!(!html.exists());
    let nowhere = hammerhead(["bench", "--html", "/no such folder/page.html"]);
    assert_refused(&nowhere, &["/no such folder/page.html"]);
    assert_eq!(hammerhead(["bench", "--against", "a.json"]).status.code(), Some(2), "a record is shown on a page");
}
