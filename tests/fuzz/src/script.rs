//! The byte scripts that the guest of [`guest`](crate::guest) runs.
//!
//! ```text
//! script   = place op*
//! op       = 0x00..=0xDF  value*       call import op % n, one value for each parameter
//!          | 0xE0..=0xE7  at value     store a byte in the scratch memory
//!          | 0xE8..=0xEF  at value     store 32 bits there
//!          | 0xF0..=0xF7  at n byte*n  copy bytes there
//!          | 0xF8..=0xFB  value        remember the 32 bits at that address
//!          | 0xFC         value        grow the memory by so many pages
//!          | 0xFD         value value  return an error: address, length
//!          | 0xFE                      trap
//!          | 0xFF                      return
//! value    = 0x00..=0x6F               itself
//!          | 0x70..=0xAF               the address of scratch slot b - 0x70
//!          | 0xB0..=0xBF               one of the last 8 results
//!          | 0xC0..=0xC7  shift        1 << shift, less the lowest bit of b
//!          | 0xC8..=0xCF               all ones
//!          | 0xD0..=0xDF  lo hi        16 bits
//!          | 0xE0..=0xEF  4 bytes      32 bits, little-endian
//!          | 0xF0..=0xFF  8 bytes      64 bits, little-endian
//! at       = a byte: 16 * at is the place in the scratch memory
//! ```
//!
//! What is missing at the end reads as 0, and the end returns.

use crate::guest::Guest;

/// Where the scratch memory begins.
pub const SCRATCH: u32 = 0x1000;
/// Bytes of a scratch slot.
pub const SLOT_BYTES: u32 = 64;
/// Number of scratch slots.
pub const SLOTS: u32 = 64;

/// Writes scripts, for seeds and tests.
#[derive(Debug)]
pub struct Script<'g> {
    guest: &'g Guest,
    bytes: Vec<u8>,
}

impl<'g> Script<'g> {
    /// Begins a script; `place` chooses the cluster, see [`run`](crate::run::run).
    pub fn new(guest: &'g Guest, place: u8) -> Self {
        Script { guest, bytes: vec![place] }
    }

    /// Calls an import by its name: `variables.read`, `variable.declare`, `drop pending`.
    ///
    /// # Panics
    /// There is no such import, or it has another number of parameters.
    #[must_use]
    pub fn call(mut self, name: &str, values: &[Value]) -> Self {
        let (index, parameters) = self.guest.import(name).unwrap_or_else(|| panic!("no import `{name}`"));
        assert_eq!(parameters, values.len(), "parameters of `{name}`");
        self.bytes.push(u8::try_from(index).expect("fewer than 224 imports"));
        values.iter().for_each(|value| value.write(&mut self.bytes));
        self
    }

    /// Copies bytes into the scratch memory, from slot `slot` on.
    ///
    /// # Panics
    /// There are more than 255.
    #[must_use]
    pub fn copy(mut self, slot: u8, bytes: &[u8]) -> Self {
        let count = u8::try_from(bytes.len()).expect("few bytes");
        self.bytes.extend([0xF0, slot * 4, count]);
        self.bytes.extend(bytes);
        self
    }

    /// Adds bytes as they are.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// The script.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// A value of a script.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A number.
    Number(u64),
    /// The address of a scratch slot.
    Slot(u8),
    /// The result before this many others.
    Last(u8),
}

impl Value {
    fn write(self, bytes: &mut Vec<u8>) {
        match self {
            Value::Number(number @ 0..=0x6F) => bytes.push(number as u8),
            Value::Number(number) => {
                bytes.push(0xF0);
                bytes.extend(number.to_le_bytes());
            }
            Value::Slot(slot) => bytes.push(0x70 + slot),
            Value::Last(before) => bytes.push(0xB0 + before),
        }
    }
}
