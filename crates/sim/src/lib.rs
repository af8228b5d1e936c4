
pub mod store_suite;
