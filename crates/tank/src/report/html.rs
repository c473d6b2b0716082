//! The season's page, told as a story: what was gained, the champion's way through the rounds, who judged and how they
//! voted, what was claimed against what was found, and then everything that is needed to check it.

mod judges;
mod sources;
mod story;

use page::Page;

use super::Report;

/// The report as HTML.
pub fn html(report: &Report) -> String {
    Page::new(&format!("The tank: season {} “{}”", report.number, report.season), &story::summary(report))
        .section("path", "The champion’s path", &story::path(report))
        .section("judges", "The judges", &judges::court(report))
        .section("votes", "How they voted", &judges::votes(report))
        .section("scorecard", &format!("Claimed against {}", report.found()), &story::scorecard(report))
        .section("problems", "Problem by problem", &story::problems(report))
        .section("roofline", "Roofline", &story::roofline(report))
        .section("lineage", "Claims that were revised", &story::lineage(report))
        .section("pitches", "Pitches", &story::pitches(report))
        .section("examination", "Examination and deals", &sources::examination(report))
        .section("calibration", "Who was right", &sources::calibration(report))
        .section("graveyard", "Graveyard", &sources::graveyard(report))
        .section("controls", "Controls", &sources::controls(report))
        .section("guards", "What held the contestants", &sources::guards(report))
        .section("provenance", "What it rests on", &sources::provenance(report))
        .html()
}
