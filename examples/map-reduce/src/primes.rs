//! A sieve of Eratosthenes that goes over a range piece by piece, each small enough for a processor's cache.

use std::cell::RefCell;

/// Odd numbers in one piece of the sieve.
const PIECE: u64 = 1 << 17;

thread_local! {
    /// The odd primes that the chunks so far needed: what an instance keeps between calls.
    static SMALL: RefCell<Small> = const { RefCell::new(Small { below: 0, primes: Vec::new() }) };
}

/// All odd primes below a bound.
struct Small {
    below: u64,
    primes: Vec<u64>,
}

/// The number of primes from `from` to below `to`.
pub(crate) fn count(from: u64, to: u64) -> u64 {
    SMALL.with_borrow_mut(|small| {
        let root = to.isqrt() + 1;
        if small.below < root {
            *small = Small { below: root, primes: simple_sieve(root) };
        }
        let two = u64::from((from..to).contains(&2));
        two + count_odd(from.max(3), to, &small.primes)
    })
}

/// The odd primes below `below`.
fn simple_sieve(below: u64) -> Vec<u64> {
    let mut composite = vec![false; below as usize];
    let mut primes = Vec::new();
    for number in (3..below).step_by(2) {
        if composite[number as usize] {
            continue;
        }
        primes.push(number);
        for multiple in (number * number..below).step_by(2 * number as usize) {
            composite[multiple as usize] = true;
        }
    }
    primes
}

/// The number of odd primes from `from`, at least 3, to below `to`; `primes` has those up to the root of `to`.
fn count_odd(from: u64, to: u64, primes: &[u64]) -> u64 {
    let mut prime = vec![true; PIECE as usize];
    let mut start = from | 1;
    let mut found = 0;
    while start < to {
        let length = (to - start).div_ceil(2).min(PIECE);
        let prime = &mut prime[..length as usize];
        prime.fill(true);
        let end = start + 2 * length;
        for &factor in primes.iter().take_while(|&&factor| factor * factor < end) {
            let first = (factor * factor).max(start.div_ceil(factor) * factor);
            let first_odd = if first.is_multiple_of(2) { first + factor } else { first };
            for index in ((first_odd - start) / 2..length).step_by(factor as usize) {
                prime[index as usize] = false;
            }
        }
        found += prime.iter().filter(|prime| **prime).count() as u64;
        start = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_trial_division() {
        let is_prime = |number: u64| number >= 2 && (2..=number.isqrt()).all(|factor| !number.is_multiple_of(factor));
        for from in (0..40).step_by(3) {
            for to in (from..200).step_by(7) {
                let expected = (from..to).filter(|&number| is_prime(number)).count() as u64;
                assert_eq!(count(from, to), expected, "from {from} to {to}");
            }
        }
    }

    #[test]
    fn known_counts_are_met_across_pieces() {
        assert_eq!(count(0, 1_000_000), 78_498);
        assert_eq!(count(999_000_000, 999_100_000), 4_760);
        assert_eq!(count(5, 3), 0);
    }
}
