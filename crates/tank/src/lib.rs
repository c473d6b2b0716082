//! The tank: how an optimisation earns its place.
//!
//! A claim is written down first, judged by sharks of distinct temperaments, checked for correctness before any clock
//! starts, timed in pairs against the champion, and remembered in a ledger that says who was right.
//!
//! [`season`] is what a file asks for, [`play`] plays its rounds, step by step through the [`ledger`]; [`pitch`] is
//! what is brought, [`evidence`] what the tank computes about it, [`rules`] what disqualifies it; [`shark`]s vote,
//! [`tally`] counts. Who examines and times stands behind [`court`]: [`official`] on this machine, with the crate
//! `referee`; a [`cluster`] of others; or, for a GPU that is not there, one that predicts. What is computed is an
//! [`operation`] (problems, questions, and [`configurations`] of our own where it has them). [`verdict`] judges.
//! [`history`] reads the ledger: who was right, and what lies in the graveyard; [`board`]: who was champion when.

pub mod board;
pub mod cluster;
pub mod configurations;
pub mod court;
pub mod entry;
mod error;
pub mod event;
pub mod evidence;
pub mod exploits;
pub mod history;
pub mod ledger;
pub mod mortem;
pub mod official;
pub mod operation;
pub mod operations;
pub mod pitch;
pub mod play;
pub mod replay;
pub mod report;
pub mod research;
pub mod round;
pub mod rules;
pub mod season;
pub mod settings;
pub mod shark;
pub mod tally;
pub mod verdict;
pub mod written;

pub use error::{Error, Result};
