//! Mistakes that the types cannot exclude are reported when the kernel is finished.

use ptx::{Builder, Error, LaunchBounds, Rule, Target, U32};

fn builder() -> Builder {
    Builder::new("small", Target::Sm90a, LaunchBounds { threads: 32, cluster: None, min_blocks: None })
}

#[test]
fn two_parameters_of_one_name_are_refused() {
    let mut k = builder();
    k.param::<U32>("n");
    k.param::<U32>("n");
    assert!(matches!(k.finish(), Err(Error::DuplicateName { what: "parameters", .. })));
}

#[test]
fn two_shared_regions_of_one_name_are_refused() {
    let mut k = builder();
    k.shared("tile", 16, 16);
    k.shared("tile", 16, 16);
    assert!(matches!(k.finish(), Err(Error::DuplicateName { what: "shared regions", .. })));
}

#[test]
fn a_name_ptx_cannot_spell_is_refused() {
    let mut k = builder();
    k.param::<U32>("batch-size");
    assert_eq!(k.finish(), Err(Error::BadName { name: "batch-size".into() }));
}

#[test]
fn a_guard_within_a_guard_is_refused_by_phase() {
    let mut k = builder();
    let n = k.param::<U32>("n");
    let (some, many) = (k.ge(n, 1), k.ge(n, 9));
    k.phase("count", |k| k.when(some, |k| k.unless(many, |k| k.set(n, 0))));
    assert_eq!(k.finish(), Err(Error::NestedGuard { phase: "small/count".into() }));
}

#[test]
fn a_branch_to_nowhere_is_refused() {
    let mut k = builder();
    let label = k.label();
    k.branch(label);
    assert!(matches!(k.finish(), Err(Error::Illegal(v)) if v.rule == Rule::LabelMissing { label: 0 }));
}

#[test]
fn shared_regions_are_aligned_one_after_another() {
    let mut k = builder();
    k.shared("odd", 5, 4);
    let tile = k.shared("tile", 256, 128);
    let kernel = k.finish().expect("a legal kernel");
    assert_eq!((tile.offset, kernel.shared_bytes(), kernel.shared_align()), (128, 384, 128));
    assert_eq!(kernel.region_at(200).map(|region| region.name.as_str()), Some("tile"));
    assert_eq!(kernel.region_at(64), None);
}
