//! The branches of instrumented code that were taken since the last look.
//!
//! The compiler puts a counter of eight bits on every branch when it is told to
//! (`verification/fuzz/instrument` says how, on a stable toolchain), and passes their range at start.
//! In a program that was compiled without, there are none, and everything here says so.

#![expect(
    unsafe_code,
    reason = "the counters are written by instrumented code behind the language's back"
)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

static FIRST: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Called by every instrumented object file before `main`, each time with the counters of the whole
/// program, because a program is linked into one section of them.
// SAFETY: the name is the one that the compiler calls; nothing else has it.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(first: *mut u8, end: *mut u8) {
    FIRST.store(first, Ordering::Relaxed);
    COUNT.store(
        (end as usize).saturating_sub(first as usize),
        Ordering::Release,
    );
}

/// How many branches there are; 0 in a program without counters.
#[must_use]
pub fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

fn counters() -> &'static [AtomicU8] {
    let count = count();
    if count == 0 {
        return &[];
    }
    // SAFETY: the section lives as long as the program, and an atomic byte has the layout of a byte.
    // Instrumented code writes without atomics, from several threads: a count may be lost, which no
    // answer depends on.
    unsafe { std::slice::from_raw_parts(FIRST.load(Ordering::Relaxed).cast::<AtomicU8>(), count) }
}

/// Forgets all that was taken.
pub fn clear() {
    for counter in counters() {
        counter.store(0, Ordering::Relaxed);
    }
}

/// Tells every branch that was taken since the last look, and how often (up to 255, then from 0 again),
/// and forgets it.
pub fn take(mut taken: impl FnMut(usize, u8)) {
    // Nearly all are zero: eight at once are passed over.
    let (groups, rest) = counters().as_chunks::<8>();
    for (group, eight) in groups.iter().enumerate() {
        let bytes = eight
            .each_ref()
            .map(|counter| counter.load(Ordering::Relaxed));
        if u64::from_ne_bytes(bytes) == 0 {
            continue;
        }
        for (place, times) in bytes
            .into_iter()
            .enumerate()
            .filter(|(_, times)| *times > 0)
        {
            eight[place].store(0, Ordering::Relaxed);
            taken(group * 8 + place, times);
        }
    }
    let before = groups.len() * 8;
    for (place, counter) in rest.iter().enumerate() {
        let times = counter.swap(0, Ordering::Relaxed);
        if times > 0 {
            taken(before + place, times);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_reported_once() {
        // What an instrumented program does, by hand: nothing here is instrumented.
        let section: &'static mut [u8] = Box::leak(Box::new([0_u8; 19]));
        let range = section.as_mut_ptr_range();
        __sanitizer_cov_8bit_counters_init(range.start, range.end);
        assert_eq!(count(), 19);
        for place in [0, 7, 8, 17, 18] {
            counters()[place].store(3, Ordering::Relaxed);
        }
        let mut seen = Vec::new();
        take(|place, times| seen.push((place, times)));
        assert_eq!(seen, [(0, 3), (7, 3), (8, 3), (17, 3), (18, 3)]);
        take(|_, _| panic!("told twice"));
        counters()[1].store(1, Ordering::Relaxed);
        clear();
        take(|_, _| panic!("was forgotten"));
    }
}
