//! The chain port against real nodes of several vendors: different texts must lead to the same outcome.
#![expect(
    clippy::unwrap_used,
    reason = "clippy does not count test helpers as tests"
)]

mod calls;
mod fixture;
mod reads;
mod sends;

use fixture::NodeSoftware;

/// Tests of one node software. Each starts its own node, because test runners may use a process per test.
macro_rules! node_tests {
    ($module:ident, $software:expr, $($test:ident: $run:path),+ $(,)?) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    $run($software).await;
                }
            )+
        }
    };
}

/// The tests for every node software.
macro_rules! common_node_tests {
    ($module:ident, $software:expr $(, $test:ident: $run:path)*) => {
        node_tests! {
            $module, $software,
            blocks_receipts_nonces_and_fees_are_read: reads::check_reads,
            estimates_and_revert_reasons_are_read: calls::check_calls,
            send_errors_have_their_outcomes: sends::check_send_errors,
            many_envelopes_are_sent_in_order: sends::check_many_sends,
            $($test: $run),*
        }
    };
}

/// All tests, for every software except the dev chain, which has only the newest state and no subscriptions.
macro_rules! all_node_tests {
    ($module:ident, $software:expr) => {
        common_node_tests!(
            $module, $software,
            consumer_of_a_nonce_is_found: reads::check_consumers,
            new_heads_are_announced: reads::check_head_subscription
        );
    };
}

all_node_tests!(anvil, NodeSoftware::Anvil);
all_node_tests!(hardhat, NodeSoftware::Hardhat);
all_node_tests!(ganache, NodeSoftware::Ganache);
common_node_tests!(devchain, NodeSoftware::DevChain);
