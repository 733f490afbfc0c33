//! Tests of the public interface of pools, policies, sources and wrappers.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod auto_growth;
mod bad_blocks;
mod bfc_deferred;
mod bfc_faults;
mod bfc_frontier;
mod bfc_inspect;
mod bfc_model;
mod bfc_reference;
mod bfc_space;
mod bfc_upstream;
mod buddy;
mod call_backs;
mod choice;
mod collections;
#[path = "../common/mod.rs"]
mod common;
mod devices;
mod environment_bytes;
mod guard;
mod guard_model;
mod limits;
mod oom_report;
mod paddle_pools;
mod paddle_upstream;
mod passthrough;
mod placement;
mod pool_bytes;
mod pool_promises;
mod pool_view;
mod pytorch;
mod registry;
mod resize;
mod retry_ended;
mod retry_fair;
mod retry_pool;
mod retry_upstream;
mod shadow;
mod sim;
mod source_failures;
mod thread_cache;
mod virtual_memory;
mod visitors;
