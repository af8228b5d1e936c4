//! What a borrower is told while it runs, one word per line of its input.

use std::io::stdin;
use std::thread;

use tokio::sync::watch;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Borrow, and use, give back or forget.
    Work,
    /// Borrow, and say nothing: whoever is killed now dies between issue and mark.
    Linger,
    /// Use everything up to this nonce and nothing above, so that every hole shows itself.
    Drain(u64),
    /// Finish what is under way and end.
    Stop,
}

/// Listens until the input ends, which is an order to stop. On a thread of its own, because reading blocks.
pub(crate) fn listen() -> watch::Receiver<Order> {
    let (orders, heard) = watch::channel(Order::Work);
    thread::spawn(move || {
        for line in stdin().lines().map_while(Result::ok) {
            match parse(&line) {
                Some(order) => {
                    orders.send_replace(order);
                }
                None => eprintln!("borrower: no such order: {line}"),
            }
        }
        orders.send_replace(Order::Stop);
    });
    heard
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
    fn orders_are_words() {
        assert_eq!(parse("work"), Some(Order::Work));
        assert_eq!(parse("drain 17"), Some(Order::Drain(17)));
        assert_eq!(parse("drain"), None);
        assert_eq!(parse("dance"), None);
    }
}
