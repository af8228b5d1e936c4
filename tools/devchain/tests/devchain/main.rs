//! Black-box tests of the dev chain: every test uses a served chain over HTTP, as the product does.

mod contracts;
mod durability;
mod fees;
mod logs;
mod mining;
mod pool;
mod reorg;
mod requests;
mod support;
mod transfers;
