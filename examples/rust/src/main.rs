//! A small business that pays out: it has the key, signs and sends by itself, and borrows every nonce from the
//! nonce component, so that several processes of it can run at once on one account.
//!
//! `payouts --database postgres://… --rpc http://… --key 0x… --to 0x… --count 20`
#![expect(clippy::print_stdout, reason = "it says what it does")]

mod lending;
mod wallet;

use std::process::ExitCode;

use alloy_primitives::{Address, B256};
use clap::Parser;
use domain::{ChainId, LaneKey};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use nonce::{NonceComponent, Outcome};

use lending::ReservationRules;
use wallet::{CallError, Wallet};

/// How many payments are under way at once.
const AT_ONCE: usize = 8;
/// Every so many payments nothing more is said after `submitted`: the chain closes their nonces by itself.
const UNSAID_EVERY: usize = 4;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Pays one wei to an account, so many times.
#[derive(Parser)]
struct Args {
    /// Where the books of lent nonces are: postgres://user:password@host:5432/database
    #[arg(long)]
    database: String,
    /// A node of the chain
    #[arg(long)]
    rpc: String,
    /// The key of the account that pays
    #[arg(long, env = "PAYOUTS_KEY")]
    key: B256,
    /// Who is paid
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
    let lending = ReservationRules::start(&args.database, &args.rpc, lane.chain_id).await?;
    let component = lending.component();
    let payments = stream::iter(0..args.count).map(|number| {
        let says_used = number % UNSAID_EVERY != 0;
        pay(component, &wallet, lane, args.to, says_used)
    });
    let paid: Result<Vec<B256>, Failure> = payments.buffer_unordered(AT_ONCE).try_collect().await;
    lending.close().await?;
    let paid = paid?;
    println!("paid {} times", paid.len());
    wallet.mined(&paid).await?;
    println!("all of it is on chain");
    Ok(())
}

/// One payment: however it ends, its nonce is used, free for the next one, or kept for what may have been sent.
async fn pay(
    component: &NonceComponent,
    wallet: &Wallet,
    lane: LaneKey,
    to: Address,
    says_used: bool,
) -> Result<B256, Failure> {
    let paid = component.with_nonce(lane, |borrowed| async move {
        let signed = wallet.sign(borrowed.nonce.0, to)?;
        // A real business writes the signed bytes to its own database here, before anything else: a process that
        // dies after the next line must be able to send them again, because nobody else may ever use this nonce.
        borrowed.submitted(signed.hash).await?;
        match wallet.send(&signed).await {
            Ok(()) => {
                println!("nonce {}: {}", borrowed.nonce, signed.hash);
                let paid = Ok(signed.hash);
                Ok::<_, Failure>(match says_used {
                    true => Outcome::Used(signed.hash, paid),
                    false => Outcome::Hold(paid),
                })
            }
            // Given back, which is believed only if no node shows anything of the transaction.
            Err(refused @ CallError::Refused(_)) => {
                Ok(Outcome::Release(refused.to_string(), Err(refused.into())))
            }
            // It may have arrived, so the nonce is not free. The bytes that were written down are sent again later.
            Err(lost @ CallError::Lost(_)) => Ok(Outcome::Hold(Err(lost.into()))),
        }
    });
    match paid.await {
        Ok(hash) => hash,
        Err(error) => Err(error.to_string().into()),
    }
}
