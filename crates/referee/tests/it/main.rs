//! The referee from outside.

mod statistics;
