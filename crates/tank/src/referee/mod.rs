//! The referee: correct first, then paired timing.
