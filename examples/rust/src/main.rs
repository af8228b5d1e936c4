//! A small payout application: it has the key, signs and sends by itself, and reserves every nonce with the nonce
//! component, so that several of its processes can pay from one account at the same time.
//!
//! `payouts --database postgres://… --rpc http://… --key 0x… --to 0x… --count 20`
#![expect(clippy::print_stdout, reason = "the output of the example")]

mod nonces;
mod wallet;

use std::process::ExitCode;

use alloy_primitives::{Address, B256};
use clap::Parser;
use domain::{ChainId, LaneKey};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use nonce::{NonceComponent, Outcome};

use nonces::NonceService;
use wallet::{CallError, Wallet};

/// Number of concurrent payments.
const CONCURRENCY: usize = 8;
/// Every so many payments there is no mark after `submitted`: the chain closes their reservations.
const UNMARKED_EVERY: usize = 4;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Pays one wei to an account, so many times.
#[derive(Parser)]
struct Args {
    /// The database of the reservations: postgres://user:password@host:5432/database
    #[arg(long)]
    database: String,
    /// A node of the chain
    #[arg(long)]
    rpc: String,
    /// The key of the account that pays
    #[arg(long, env = "PAYOUTS_KEY")]
    key: B256,
    /// The recipient
    #[arg(long)]
    to: Address,
    /// How many payments
    #[arg(long, default_value_t = 20)]
    count: usize,
}

#[tokio::main]
async fn main() -> ExitCode {
    // The HTTP client brings no cryptography of its own. An error means that there is one already.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("payouts: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), Failure> {
    let wallet = Wallet::open(&args.rpc, args.key).await?;
    let lane = LaneKey {
        chain_id: ChainId(wallet.chain_id()),
        signer: wallet.address(),
    };
    let nonces = NonceService::start(&args.database, &args.rpc, lane.chain_id).await?;
    let component = nonces.component();
    let payments = stream::iter(0..args.count).map(|number| {
        let marks_used = number % UNMARKED_EVERY != 0;
        pay(component, &wallet, lane, args.to, marks_used)
    });
    let paid: Result<Vec<B256>, Failure> =
        payments.buffer_unordered(CONCURRENCY).try_collect().await;
    nonces.close().await?;
    let paid = paid?;
    println!("paid {} times", paid.len());
    wallet.wait_until_mined(&paid).await?;
    println!("all of it is on chain");
    Ok(())
}

/// One payment: however it ends, its nonce is used, recycled, or kept reserved for what may have been sent.
async fn pay(
    component: &NonceComponent,
    wallet: &Wallet,
    lane: LaneKey,
    to: Address,
    marks_used: bool,
) -> Result<B256, Failure> {
    let paid = component.with_nonce(lane, |held| async move {
        let signed = wallet.sign(held.nonce.0, to)?;
        // A real application stores the signed bytes in its own database here, before anything else: a process that
        // dies after the next line must be able to send them again, because a submitted nonce is not reserved again.
        held.submitted(signed.hash).await?;
        match wallet.send(&signed).await {
            Ok(()) => {
                println!("nonce {}: {}", held.nonce, signed.hash);
                let paid = Ok(signed.hash);
                Ok::<_, Failure>(match marks_used {
                    true => Outcome::Used(signed.hash, paid),
                    false => Outcome::Hold(paid),
                })
            }
            // Recycled, which is accepted only if no node shows the transaction.
            Err(refused @ CallError::Refused(_)) => {
                Ok(Outcome::Release(refused.to_string(), Err(refused.into())))
            }
            // It may have arrived, so the nonce stays reserved. The stored bytes are sent again later.
            Err(lost @ CallError::Lost(_)) => Ok(Outcome::Hold(Err(lost.into()))),
        }
    });
    match paid.await {
        Ok(hash) => hash,
        Err(error) => Err(error.to_string().into()),
    }
}
