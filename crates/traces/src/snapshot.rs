//! Results that are made of a PyTorch [`Snapshot`](crate::trace::Snapshot) and of replays of it.
