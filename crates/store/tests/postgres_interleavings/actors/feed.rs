//! The actor that appends to the feed and reads it.

use engine::ports::{EventFilter, Store as _};
use store::postgres::sql::FEED;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Play;
use crate::facts::Fact;
use crate::kit::new_grant;
use crate::turns::Hand;

/// Appends what the lanes wrote and reads on; then sweeps and reads again.
pub(super) async fn read(play: &Play, hand: &Hand) {
    let lanes: Vec<i64> = play.scene.lanes().map(|lane| lane.0).to_vec();
    let answer = hand
        .write("feed", FEED, &[(&lanes, Type::INT8_ARRAY)])
        .await;
    if let Err(error) = answer {
        return play.facts.refused("feed", &error);
    }
    let reader = new_grant().0; // any unique id
    let next = read_on(play, reader, play.feed_from.clone()).await;
    hand.turn("sweep").await;
    let nothing: Vec<i64> = Vec::new();
    if let Err(error) = hand.at_once(FEED, &[(&nothing, Type::INT8_ARRAY)]).await {
        return play.facts.refused("sweep", &error);
    }
    read_on(play, reader, Some(next)).await;
}

/// Reads the feed to its end, as anyone does.
pub(crate) async fn read_on(play: &Play, reader: Uuid, mut after: Option<String>) -> String {
    const PAGE: usize = 1_000;
    loop {
        let filter = EventFilter {
            after: after.clone(),
            limit: PAGE,
            ..EventFilter::default()
        };
        let page = play.store.events(&filter).await.expect("events");
        let events = page
            .events
            .iter()
            .map(|received| (received.lane, received.event.seq));
        play.facts.record_fact(Fact::Read {
            reader,
            events: events.collect(),
            next: page.next.clone(),
        });
        if page.events.len() < PAGE {
            return page.next;
        }
        after = Some(page.next);
    }
}
