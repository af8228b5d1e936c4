//! Orders to a running holder, one per line of its stdin.

use std::io::stdin;
use std::thread;

use tokio::sync::watch;

/// What the workers should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Reserve nonces, and use, recycle or forget them.
    Work,
    /// Reserve a nonce and wait: a kill now hits between the reservation and the mark.
    Linger,
    /// Use every nonce up to this one and recycle those above, so that all holes are filled.
    Drain(u64),
    /// Finish the payments in progress and end.
    Stop,
}

/// Reads orders until stdin ends, which means stop. On a thread of its own, because reading blocks.
pub(crate) fn read_orders() -> watch::Receiver<Order> {
    let (orders, receiver) = watch::channel(Order::Work);
    thread::spawn(move || {
        for line in stdin().lines().map_while(Result::ok) {
            match parse(&line) {
                Some(order) => {
                    orders.send_replace(order);
                }
                None => eprintln!("holder: unknown order: {line}"),
            }
        }
        orders.send_replace(Order::Stop);
    });
    receiver
}

fn parse(line: &str) -> Option<Order> {
    let mut words = line.split_whitespace();
    Some(match (words.next()?, words.next()) {
        ("work", None) => Order::Work,
        ("linger", None) => Order::Linger,
        ("drain", Some(top)) => Order::Drain(top.parse().ok()?),
        ("stop", None) => Order::Stop,
        (_, _) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_lines_are_parsed() {
        assert_eq!(parse("work"), Some(Order::Work));
        assert_eq!(parse("drain 17"), Some(Order::Drain(17)));
        assert_eq!(parse("drain"), None);
        assert_eq!(parse("dance"), None);
    }
}
