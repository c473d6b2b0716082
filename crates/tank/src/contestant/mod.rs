//! The contestants: what a pitch names to be run, built in or a program of anyone's.
