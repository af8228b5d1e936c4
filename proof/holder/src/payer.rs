//! The workers: reserve a nonce, sign, mark it submitted, send, and mark it used or leave that to the chain; or recycle
//! the nonce; or forget it.

use std::sync::Arc;
use std::time::Duration;

use domain::Address;
use proof::transfer::transfer;
use proof::{Chain, Outcome};
use serde_json::json;
use tokio::sync::watch;

use crate::journal::{Entry, Journal};
use crate::nonce_source::{Mark, NonceSource, Refusal, ReservedNonce};
use crate::orders::Order;
use crate::settings::Settings;
use crate::unfinished_payments::SignedPayment;

/// Pause before a refused call is repeated.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// Pause when there is no hole to fill.
const NO_HOLE_PAUSE: Duration = Duration::from_millis(150);
/// Longest simulated preparation of a payment.
const SIGNING_DELAY_MS_MAX: u64 = 20;
/// Of a hundred nonces so many are recycled, and so many are forgotten.
const RECYCLED_OF_100: u32 = 20;
const FORGOTTEN_OF_100: u32 = 2;
/// Of a hundred sent transactions so many are not marked used: the chain closes them.
const UNMARKED_OF_100: u32 = 30;

/// One account with several workers.
pub(crate) struct Payer {
    source: Arc<dyn NonceSource>,
    node: Chain,
    account: u32,
    pace: Duration,
    journal: Arc<Journal>,
}

impl Payer {
    pub(crate) fn new(
        settings: &Settings,
        source: Arc<dyn NonceSource>,
        journal: Arc<Journal>,
    ) -> Outcome<Self> {
        Ok(Self {
            source,
            node: Chain::new(settings.rpc.clone())?,
            account: settings.account,
            pace: settings.pace(),
            journal,
        })
    }

    /// A worker, until it is ordered to stop.
    pub(crate) async fn work(self: Arc<Self>, mut orders: watch::Receiver<Order>) -> Outcome<()> {
        loop {
            let order = *orders.borrow_and_update();
            if order == Order::Stop {
                return Ok(());
            }
            let reserved = match self.source.allocate().await {
                Ok(reserved) => reserved,
                Err(refusal) => {
                    self.journal.write(&Entry::Refused(refusal.kind()))?;
                    tokio::time::sleep(RETRY_AFTER).await;
                    continue;
                }
            };
            self.journal.write(&Entry::Reserved(&reserved))?;
            match order {
                Order::Work => self.choose_action(&reserved).await?,
                Order::Linger => {
                    orders.changed().await.ok(); // without another order it waits until its process ends
                }
                Order::Drain(top) if reserved.nonce.0 <= top => self.pay(&reserved).await?,
                Order::Drain(_) => {
                    self.recycle(&reserved).await?;
                    tokio::time::sleep(NO_HOLE_PAUSE).await;
                }
                Order::Stop => self.recycle(&reserved).await?,
            }
            tokio::time::sleep(self.pace).await;
        }
    }

    async fn choose_action(&self, reserved: &ReservedNonce) -> Outcome<()> {
        let delay = Duration::from_millis(rand::random_range(0..=SIGNING_DELAY_MS_MAX));
        tokio::time::sleep(delay).await;
        match rand::random_range(0..100) {
            drawn if drawn < FORGOTTEN_OF_100 => self.journal.write(&Entry::Abandoned(reserved)),
            drawn if drawn < FORGOTTEN_OF_100 + RECYCLED_OF_100 => self.recycle(reserved).await,
            _ => self.pay(reserved).await,
        }
    }

    /// Pays a recipient that gets no other payment.
    async fn pay(&self, reserved: &ReservedNonce) -> Outcome<()> {
        let to = Address::from(rand::random::<[u8; 20]>());
        let signed = transfer(self.account, reserved.nonce.0, to)?;
        let raw = signed.raw.to_string();
        self.journal
            .write(&Entry::Signed(reserved, signed.hash, &raw))?;
        self.finish(SignedPayment {
            reserved: reserved.clone(),
            hash: signed.hash,
            raw,
        })
        .await
    }

    /// Marks submitted, sends, and marks used or leaves that to the chain. May be repeated from the start.
    pub(crate) async fn finish(&self, payment: SignedPayment) -> Outcome<()> {
        let SignedPayment {
            reserved,
            hash,
            raw,
        } = &payment;
        if let Err(why) = self.mark(reserved, &Mark::Submitted(*hash)).await {
            return self.journal.write(&Entry::Dropped(reserved, &why));
        }
        self.journal.write(&Entry::Announced(reserved))?;
        self.journal.write(&Entry::Offered(reserved, *hash))?;
        self.send(raw).await;
        if rand::random_range(0..100) < UNMARKED_OF_100 {
            return self.journal.write(&Entry::LeftToChain(reserved));
        }
        if let Err(why) = self.mark(reserved, &Mark::Used(*hash)).await {
            return Err(
                format!("nonce {}: the used mark is refused: {why}", reserved.nonce).into(),
            );
        }
        self.journal.write(&Entry::Used(reserved))
    }

    async fn recycle(&self, reserved: &ReservedNonce) -> Outcome<()> {
        self.journal.write(&Entry::Recycling(reserved))?;
        match self.mark(reserved, &Mark::Recyclable).await {
            Ok(()) => self.journal.write(&Entry::Recycled(reserved)),
            // It expired before the mark arrived: it is already free, or has another holder.
            Err(_) => Ok(()),
        }
    }

    /// Repeats a mark until it is accepted or refused permanently.
    async fn mark(&self, reserved: &ReservedNonce, mark: &Mark) -> Result<(), String> {
        loop {
            match self.source.mark(reserved, mark).await {
                Ok(()) => return Ok(()),
                Err(Refusal::Permanent(why)) => return Err(why),
                Err(Refusal::Retryable(_)) => tokio::time::sleep(RETRY_AFTER).await,
            }
        }
    }

    /// Sends the bytes until the node has them. Other errors are left to the audit.
    async fn send(&self, raw: &str) {
        let knows = ["already", "nonce too low"];
        loop {
            let sent = self.node.call("eth_sendRawTransaction", json!([raw])).await;
            match sent.map_err(|error| error.to_string()) {
                Ok(_) => return,
                Err(text) if knows.iter().any(|known| text.contains(known)) => return,
                Err(_) => tokio::time::sleep(RETRY_AFTER).await,
            }
        }
    }
}
