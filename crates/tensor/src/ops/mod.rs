//! The ops, one family a file: the public method, the shape rule, the allocation, the forward call, the backward, and
//! the tests side by side.
