//! What a desk does all day: borrow, sign, announce, send, say that it is used, or leave that to the chain; or give
//! back; or forget.

use std::sync::Arc;
use std::time::Duration;

use domain::Address;
use proof::transfer::transfer;
use proof::{Chain, Outcome};
use serde_json::json;
use tokio::sync::watch;

use crate::door::{Door, Refusal, ReservationTerms, Word};
use crate::journal::{Entry, Journal};
use crate::orders::Order;
use crate::settings::Settings;
use crate::unfinished::Sale;

/// How long a desk rests before it asks again for what it did not get.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How long it rests when there is no hole for it to fill.
const NO_HOLE_PAUSE: Duration = Duration::from_millis(150);
/// How long it takes to make up a payment, at most.
const THINKING_MS_MAX: u64 = 20;
/// Of a hundred nonces so many are given back, and so many are forgotten.
const GIVEN_BACK_OF_100: u32 = 20;
const FORGOTTEN_OF_100: u32 = 2;
/// Of a hundred that are sent, of so many it is not said that they are used: the chain closes them.
const LEFT_OF_100: u32 = 30;

/// One business with several desks.
pub(crate) struct Business {
    door: Arc<dyn Door>,
    node: Chain,
    account: u32,
    pace: Duration,
    journal: Arc<Journal>,
}

impl Business {
    pub(crate) fn new(
        settings: &Settings,
        door: Arc<dyn Door>,
        journal: Arc<Journal>,
    ) -> Outcome<Self> {
        Ok(Self {
            door,
            node: Chain::new(settings.rpc.clone())?,
            account: settings.account,
            pace: settings.pace(),
            journal,
        })
    }

    /// A desk, until it is told to stop.
    pub(crate) async fn work(self: Arc<Self>, mut orders: watch::Receiver<Order>) -> Outcome<()> {
        loop {
            let order = *orders.borrow_and_update();
            if order == Order::Stop {
                return Ok(());
            }
            let loan = match self.door.allocate().await {
                Ok(loan) => loan,
                Err(refusal) => {
                    self.journal.write(&Entry::Refused(refusal.kind()))?;
                    tokio::time::sleep(AGAIN_AFTER).await;
                    continue;
                }
            };
            self.journal.write(&Entry::Lent(&loan))?;
            match order {
                Order::Work => self.any_fate(&loan).await?,
                Order::Linger => {
                    orders.changed().await.ok(); // without an order it lingers on, and ends with its process
                }
                Order::Drain(top) if loan.nonce.0 <= top => self.pay(&loan).await?,
                Order::Drain(_) => {
                    self.give_back(&loan).await?;
                    tokio::time::sleep(NO_HOLE_PAUSE).await;
                }
                Order::Stop => self.give_back(&loan).await?,
            }
            tokio::time::sleep(self.pace).await;
        }
    }

    async fn any_fate(&self, loan: &ReservationTerms) -> Outcome<()> {
        let thinking = Duration::from_millis(rand::random_range(0..=THINKING_MS_MAX));
        tokio::time::sleep(thinking).await;
        match rand::random_range(0..100) {
            drawn if drawn < FORGOTTEN_OF_100 => self.journal.write(&Entry::Abandoned(loan)),
            drawn if drawn < FORGOTTEN_OF_100 + GIVEN_BACK_OF_100 => self.give_back(loan).await,
            _ => self.pay(loan).await,
        }
    }

    /// A payment to somebody who gets no other one.
    async fn pay(&self, loan: &ReservationTerms) -> Outcome<()> {
        let to = Address::from(rand::random::<[u8; 20]>());
        let signed = transfer(self.account, loan.nonce.0, to)?;
        let raw = signed.raw.to_string();
        self.journal
            .write(&Entry::Signed(loan, signed.hash, &raw))?;
        self.finish(Sale {
            loan: loan.clone(),
            hash: signed.hash,
            raw,
        })
        .await
    }

    /// Announces, sends, and says that it is used, or leaves that to the chain. Safe to repeat from the start.
    pub(crate) async fn finish(&self, sale: Sale) -> Outcome<()> {
        let Sale { loan, hash, raw } = &sale;
        if let Err(why) = self.say(loan, &Word::Submitted(*hash)).await {
            return self.journal.write(&Entry::Dropped(loan, &why));
        }
        self.journal.write(&Entry::Announced(loan))?;
        self.journal.write(&Entry::Offered(loan, *hash))?;
        self.send(raw).await;
        if rand::random_range(0..100) < LEFT_OF_100 {
            return self.journal.write(&Entry::Left(loan));
        }
        if let Err(why) = self.say(loan, &Word::Used(*hash)).await {
            return Err(format!("nonce {}: used is refused: {why}", loan.nonce).into());
        }
        self.journal.write(&Entry::Used(loan))
    }

    async fn give_back(&self, loan: &ReservationTerms) -> Outcome<()> {
        self.journal.write(&Entry::Returning(loan))?;
        match self.say(loan, &Word::Recyclable).await {
            Ok(()) => self.journal.write(&Entry::Returned(loan)),
            // Its time was over before the word arrived: it is free, or somebody else's, already.
            Err(_) => Ok(()),
        }
    }

    /// Says it until it is heard, or refused for good.
    async fn say(&self, loan: &ReservationTerms, word: &Word) -> Result<(), String> {
        loop {
            match self.door.say(loan, word).await {
                Ok(()) => return Ok(()),
                Err(Refusal::ForGood(why)) => return Err(why),
                Err(Refusal::Later(_)) => tokio::time::sleep(AGAIN_AFTER).await,
            }
        }
    }

    /// Hands the bytes over until the node has them. What it thinks of them is for the audit.
    async fn send(&self, raw: &str) {
        let knows = ["already", "nonce too low"];
        loop {
            let sent = self.node.call("eth_sendRawTransaction", json!([raw])).await;
            match sent.map_err(|error| error.to_string()) {
                Ok(_) => return,
                Err(text) if knows.iter().any(|word| text.contains(word)) => return,
                Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
            }
        }
    }
}
