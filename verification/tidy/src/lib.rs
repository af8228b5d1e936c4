//! Rules about the source tree that no compiler checks: vocabulary, sizes, crate arrows, and where
//! critical code may live. Each rule is a function over a [`SourceTree`] that returns its violations,
//! so that it can be tested on a planted mistake; `tests/` runs all of them on this repository.

pub mod comments;
pub mod placement;
pub mod sizes;
pub mod tree;
pub mod vocabulary;

pub use tree::{SourceFile, SourceTree, repository_root};
