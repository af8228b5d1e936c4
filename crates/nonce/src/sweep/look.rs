//! What one chain shows of the nonces that are watched on it.

use std::collections::BTreeMap;

use domain::lane::{
    ChainQuery, EndpointNonces, FOREIGN_DEPTH_MIN, Finality, FinalityTag, NonceConsumer,
};
use domain::{Address, B256, Header, Inclusion, Nonce, Reservation, ReservationState};
use engine::ports::{BlockTag, Chain, ChainError, Quorum};

use crate::config::LentChain;
use crate::scheme::{Verdict, Watched};

/// How many nonces whose transaction nobody named are searched for in one pass: each may cost a dozen calls.
const SEARCHES_MAX: usize = 32;

/// What the chain shows of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// It is decided.
    Verdict(Verdict),
    /// Its time is over, and nothing is mined or pending.
    Unused,
    /// Something is under way: not decided.
    Waits,
    /// The transaction that was named is mined for good, and the nonce is not consumed: it is not the nonce's.
    NotIts(B256),
    /// The chain did not say.
    Unknown,
}

/// Looks at all of them. An answer that does not come leaves its nonce unknown, and no other.
pub(super) async fn look(lent: &LentChain, watched: Vec<Watched>) -> Vec<(Watched, Sight)> {
    let mut look = match Look::start(lent, &watched).await {
        Ok(look) => look,
        Err(error) => {
            let chain = lent.chain.id();
            tracing::warn!(%chain, %error, "lent nonces cannot be looked after");
            return Vec::new();
        }
    };
    let mut seen = Vec::with_capacity(watched.len());
    for one in watched {
        let sight = match look.at(&one).await {
            Ok(sight) => sight,
            Err(error @ ChainError::Unusable(_)) => {
                let Reservation { lane, nonce, .. } = one.reservation;
                tracing::warn!(%lane, %nonce, %error, "what became of a lent nonce is not known");
                Sight::Unknown
            }
            Err(ChainError::Unreachable(error)) => {
                // It would be the same for the rest, after as long a wait each.
                tracing::warn!(%error, "the chain is gone: lent nonces are looked at again later");
                break;
            }
        };
        seen.push((one, sight));
    }
    seen
}

/// The chain as it was when the pass began, and what was asked since.
struct Look<'a> {
    chain: &'a dyn Chain,
    watch_depth: u64,
    head: Header,
    /// The newest block whose transactions count for good.
    final_block: Option<Header>,
    /// The newest block whose transactions count for good where nobody named their hash.
    foreign_block: Option<Header>,
    receipts: BTreeMap<B256, Inclusion>,
    headers: BTreeMap<u64, Option<Header>>,
    nonces: BTreeMap<Address, EndpointNonces>,
    /// From where on nothing of an account is consumed that deep: nonces go one after the other.
    open_from: BTreeMap<Address, Nonce>,
    searches: usize,
}

impl<'a> Look<'a> {
    async fn start(lent: &'a LentChain, watched: &[Watched]) -> Result<Self, ChainError> {
        let chain = &*lent.chain;
        let no_head = || ChainError::Unusable("it has no newest block".into());
        let head = chain.header(BlockTag::Latest).await?.ok_or_else(no_head)?;
        let final_number = match lent.finality {
            Finality::Depth(depth) => head.number.checked_sub(depth),
            Finality::Tag(tag) => {
                let tag = match tag {
                    FinalityTag::Safe => BlockTag::Safe,
                    FinalityTag::Finalized => BlockTag::Finalized,
                };
                chain.header(tag).await?.map(|header| header.number)
            }
        };
        let deep_enough = head.number.checked_sub(FOREIGN_DEPTH_MIN);
        let foreign_number = match lent.finality {
            Finality::Tag(FinalityTag::Finalized) => final_number,
            Finality::Depth(_) | Finality::Tag(FinalityTag::Safe) => {
                final_number.zip(deep_enough).map(|(a, b)| a.min(b))
            }
        };
        let mut look = Self {
            chain,
            watch_depth: lent.watch_depth,
            head,
            final_block: None,
            foreign_block: None,
            receipts: receipts(chain, watched).await?,
            headers: BTreeMap::from([(head.number, Some(head))]),
            nonces: BTreeMap::new(),
            open_from: BTreeMap::new(),
            searches: 0,
        };
        look.final_block = look.header_if(final_number).await?;
        look.foreign_block = look.header_if(foreign_number).await?;
        Ok(look)
    }

    async fn at(&mut self, watched: &Watched) -> Result<Sight, ChainError> {
        let reservation = &watched.reservation;
        match (reservation.state, watched.closed_in, reservation.tx_hash) {
            (ReservationState::Used, Some(block), _) => self.at_closed(block).await,
            // That it is used is its holder's own word so far: his transaction may be dropped like any other.
            (ReservationState::Used, None, Some(tx_hash))
            | (ReservationState::Reserved, _, Some(tx_hash)) => {
                self.at_submitted(reservation, tx_hash).await
            }
            (ReservationState::Reserved, _, None) => self.at_overdue(reservation).await,
            (ReservationState::Used, None, None) | (ReservationState::Recyclable, _, _) => {
                match self.is_consumed(reservation).await? {
                    true => self.search(reservation).await,
                    false => Ok(Sight::Waits),
                }
            }
        }
    }

    /// A closed one stays closed unless another block stands where its block stood. A node that has no block
    /// there is behind, which proves nothing.
    async fn at_closed(&mut self, block: Header) -> Result<Sight, ChainError> {
        let there = self.header(block.number).await?;
        Ok(match there {
            Some(there) if there.hash != block.hash => Sight::Verdict(Verdict::Reopened),
            Some(_) if self.head.number.saturating_sub(block.number) >= self.watch_depth => {
                Sight::Verdict(Verdict::Buried)
            }
            Some(_) | None => Sight::Waits,
        })
    }

    /// A submitted one is used when its transaction is final, or when another one took the nonce, whatever its
    /// holder says. It is never free by time: its transaction may be in a pool that nobody asked.
    async fn at_submitted(
        &mut self,
        reservation: &Reservation,
        tx_hash: B256,
    ) -> Result<Sight, ChainError> {
        let Some(inclusion) = self.receipts.get(&tx_hash) else {
            return match self.is_consumed(reservation).await? {
                true => self.search(reservation).await,
                false => Ok(Sight::Waits),
            };
        };
        let (number, hash) = (inclusion.block_number, inclusion.block_hash);
        if self.final_block.is_none_or(|block| block.number < number) {
            return Ok(Sight::Waits);
        }
        let Some(block) = self.header(number).await?.filter(|at| at.hash == hash) else {
            return Ok(Sight::Waits); // the receipt is of another branch than the one that we are shown
        };
        // A hash says nothing of the account and the nonce that it stands for.
        Ok(match self.is_consumed(reservation).await? {
            true => Sight::Verdict(Verdict::Used {
                tx_hash: Some(tx_hash),
                block,
            }),
            false => Sight::NotIts(tx_hash),
        })
    }

    /// Of an overdue one nobody knows whether it was sent: the account's nonce tells.
    async fn at_overdue(&mut self, reservation: &Reservation) -> Result<Sight, ChainError> {
        let nonces = self.account_nonces(reservation.lane.signer).await?;
        let highest = nonces.highest();
        if highest.latest > reservation.nonce {
            return self.search(reservation).await;
        }
        Ok(
            match highest.pending <= reservation.nonce && nonces.is_complete {
                true => Sight::Unused,
                false => Sight::Waits,
            },
        )
    }

    async fn is_consumed(&mut self, reservation: &Reservation) -> Result<bool, ChainError> {
        let nonces = self.account_nonces(reservation.lane.signer).await?;
        Ok(nonces.highest().latest > reservation.nonce)
    }

    /// By which transaction a nonce was consumed, at a depth at which that stays so.
    async fn search(&mut self, reservation: &Reservation) -> Result<Sight, ChainError> {
        let Some(block) = self.foreign_block else {
            return Ok(Sight::Waits);
        };
        let (account, nonce) = (reservation.lane.signer, reservation.nonce);
        if self
            .open_from
            .get(&account)
            .is_some_and(|open| nonce >= *open)
        {
            return Ok(Sight::Waits);
        }
        if self.searches == SEARCHES_MAX {
            return Ok(Sight::Unknown);
        }
        self.searches += 1;
        let consumer = self.chain.find_consumer(account, nonce, block).await?;
        Ok(match consumer {
            NonceConsumer::Nobody => {
                self.open_from.insert(account, nonce);
                Sight::Waits
            }
            by @ (NonceConsumer::By { .. } | NonceConsumer::Unseen) => {
                Sight::Verdict(Verdict::Used {
                    tx_hash: by.hash(),
                    block,
                })
            }
        })
    }

    async fn account_nonces(&mut self, account: Address) -> Result<EndpointNonces, ChainError> {
        if let Some(nonces) = self.nonces.get(&account) {
            return Ok(*nonces);
        }
        let asked = self
            .chain
            .account_nonces(account, ChainQuery::Pending, Quorum::Two);
        let nonces = asked.await?;
        self.nonces.insert(account, nonces);
        Ok(nonces)
    }

    async fn header(&mut self, number: u64) -> Result<Option<Header>, ChainError> {
        if let Some(header) = self.headers.get(&number) {
            return Ok(*header);
        }
        let header = self.chain.header(BlockTag::Number(number)).await?;
        self.headers.insert(number, header);
        Ok(header)
    }

    async fn header_if(&mut self, number: Option<u64>) -> Result<Option<Header>, ChainError> {
        match number {
            Some(number) => self.header(number).await,
            None => Ok(None),
        }
    }
}

/// The receipts of all that was named and is not closed, in one call.
async fn receipts(
    chain: &dyn Chain,
    watched: &[Watched],
) -> Result<BTreeMap<B256, Inclusion>, ChainError> {
    let open = watched.iter().filter(|watched| watched.closed_in.is_none());
    let open = open.map(|watched| &watched.reservation);
    let named = open.filter(|reservation| reservation.state != ReservationState::Recyclable);
    let hashes: Vec<B256> = named.filter_map(|one| one.tx_hash).collect();
    if hashes.is_empty() {
        return Ok(BTreeMap::new());
    }
    let found = chain.receipts(&hashes, Quorum::One).await?;
    Ok(found.into_iter().map(|one| (one.tx_hash, one)).collect())
}
