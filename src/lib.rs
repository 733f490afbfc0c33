//! Highwater
