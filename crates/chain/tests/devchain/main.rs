//! The dev chain from outside: every test talks to a served chain over HTTP, as the product does.

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
