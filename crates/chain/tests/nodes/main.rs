//! The chain port against real nodes of several makes: what one of them says must mean the same as
//! what another says in other words.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are outside of what clippy takes for tests"
)]

mod calls;
mod reads;
mod sends;
mod world;

use world::Make;

/// Tests of one make. Each starts a node of its own: test runners may use a process per test.
macro_rules! tests_of {
    ($module:ident, $make:expr, $($test:ident: $run:path),+ $(,)?) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    $run($make).await;
                }
            )+
        }
    };
}

/// Those that hold for every make.
macro_rules! common_tests_of {
    ($module:ident, $make:expr $(, $test:ident: $run:path)*) => {
        tests_of! {
            $module, $make,
            blocks_receipts_nonces_and_fees_are_read: reads::everything,
            estimates_and_reverts_are_explained: calls::everything,
            every_complaint_is_understood: sends::complaints,
            many_are_sent_in_order: sends::many,
            $($test: $run),*
        }
    };
}

/// And those that hold for all but the dev chain, which knows accounts of its newest block only and
/// announces nothing.
macro_rules! all_tests_of {
    ($module:ident, $make:expr) => {
        common_tests_of!(
            $module, $make,
            consumer_of_a_nonce_is_found: reads::consumers,
            new_heads_are_announced: reads::announcements
        );
    };
}

all_tests_of!(anvil, Make::Anvil);
all_tests_of!(hardhat, Make::Hardhat);
all_tests_of!(ganache, Make::Ganache);
common_tests_of!(devchain, Make::DevChain);
