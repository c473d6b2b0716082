//! Whatever is printed is read back as it was: whole kernels, and every form of every instruction.

use super::{families, same};

#[test]
fn every_kernel_is_read_as_it_is_written() {
    for (name, kernel) in super::all() {
        let kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(same::differs(&kernel), None);
    }
}

#[test]
fn every_form_of_every_instruction_is_read_as_it_is_written() {
    for family in families::all() {
        assert_eq!(same::differs(&family.specimen()), None, "{}", family.name);
    }
}
