//! `struct tls_crypto_info` and its relatives (linux/tls.h): what a program says of one direction. Bytes in, values out, and back for
//! getsockopt.

use toe_abi::errno::Errno;

/// Bytes that all of them begin with: version and cipher, two bytes each.
pub const INFO_LEN: usize = 4;
const SALT: usize = 4;
const SEQUENCE: usize = 8;
/// Of a nonce.
pub const NONCE: usize = 12;
const KEY_MAX: usize = 32;
/// The longest.
pub const LEN_MAX: usize = INFO_LEN + NONCE + KEY_MAX + SEQUENCE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Tls12,
    Tls13,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    AesGcm128,
    AesGcm256,
    ChaCha20Poly1305,
}

impl Version {
    fn number(self) -> u16 {
        match self {
            Version::Tls12 => 0x0303,
            Version::Tls13 => 0x0304,
        }
    }
}

impl Cipher {
    fn number(self) -> u16 {
        match self {
            Cipher::AesGcm128 => 51,
            Cipher::AesGcm256 => 52,
            Cipher::ChaCha20Poly1305 => 54,
        }
    }

    pub fn key_len(self) -> usize {
        match self {
            Cipher::AesGcm128 => 16,
            Cipher::AesGcm256 | Cipher::ChaCha20Poly1305 => KEY_MAX,
        }
    }

    /// Bytes of the nonce that stay what they are for all records: the others are the `iv` of the structure.
    fn salt_len(self) -> usize {
        match self {
            Cipher::AesGcm128 | Cipher::AesGcm256 => SALT,
            Cipher::ChaCha20Poly1305 => 0,
        }
    }

    /// Bytes of its structure.
    pub fn info_len(self) -> usize {
        INFO_LEN + NONCE + self.key_len() + SEQUENCE
    }
}

/// What one direction is made with.
#[derive(Clone)]
pub struct Parameters {
    pub version: Version,
    pub cipher: Cipher,
    key: [u8; KEY_MAX],
    /// Salt and iv.
    pub nonce: [u8; NONCE],
    /// Number of the next record.
    pub sequence: u64,
}

impl core::fmt::Debug for Parameters {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Never the key.
        f.debug_struct("Parameters").field("version", &self.version).field("cipher", &self.cipher).finish()
    }
}

impl Drop for Parameters {
    fn drop(&mut self) {
        self.key = [0; KEY_MAX];
        core::hint::black_box(&self.key);
    }
}

impl Parameters {
    /// EINVAL: a version or cipher that is not known here, or not the length of its structure, as Linux says.
    pub fn read(bytes: &[u8]) -> Result<Parameters, Errno> {
        let (info, rest) = bytes.split_at_checked(INFO_LEN).ok_or(Errno::EINVAL)?;
        let number = |at: usize| u16::from_ne_bytes([info[at], info[at + 1]]);
        let version = [Version::Tls12, Version::Tls13].into_iter().find(|known| known.number() == number(0));
        let ciphers = [Cipher::AesGcm128, Cipher::AesGcm256, Cipher::ChaCha20Poly1305];
        let cipher = ciphers.into_iter().find(|known| known.number() == number(2));
        let (Some(version), Some(cipher)) = (version, cipher) else { return Err(Errno::EINVAL) };
        if bytes.len() != cipher.info_len() {
            return Err(Errno::EINVAL);
        }
        let salt_len = cipher.salt_len();
        let (iv, rest) = rest.split_at(NONCE - salt_len);
        let (key_bytes, rest) = rest.split_at(cipher.key_len());
        let (salt, sequence) = rest.split_at(salt_len);
        let (mut key, mut nonce) = ([0; KEY_MAX], [0; NONCE]);
        key[..key_bytes.len()].copy_from_slice(key_bytes);
        nonce[..salt_len].copy_from_slice(salt);
        nonce[salt_len..].copy_from_slice(iv);
        let sequence = sequence.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        Ok(Parameters { version, cipher, key, nonce, sequence })
    }

    pub fn key(&self) -> &[u8] {
        &self.key[..self.cipher.key_len()]
    }

    /// Version and cipher alone.
    pub fn version_and_cipher(&self) -> [u8; INFO_LEN] {
        let [a, b] = self.version.number().to_ne_bytes();
        let [c, d] = self.cipher.number().to_ne_bytes();
        [a, b, c, d]
    }

    /// The whole structure; how many bytes of it there are.
    pub fn write(&self, out: &mut [u8; LEN_MAX]) -> usize {
        let salt_len = self.cipher.salt_len();
        let (salt, iv) = self.nonce.split_at(salt_len);
        let mut at = 0;
        for part in [&self.version_and_cipher()[..], iv, self.key(), salt, &self.sequence.to_be_bytes()] {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(version: u16, cipher: u16, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
        bytes[..2].copy_from_slice(&version.to_ne_bytes());
        bytes[2..4].copy_from_slice(&cipher.to_ne_bytes());
        bytes
    }

    #[test]
    fn the_structures_of_linux_are_read_and_written_back() {
        for (cipher, len) in [(51, 40), (52, 56), (54, 56)] {
            for version in [0x0303, 0x0304] {
                let bytes = info(version, cipher, len);
                let read = Parameters::read(&bytes).expect("known");
                let mut out = [0; LEN_MAX];
                assert_eq!(read.write(&mut out), len);
                assert_eq!(out[..len], bytes);
            }
        }
    }

    #[test]
    fn salt_and_iv_make_the_nonce() {
        let read = Parameters::read(&info(0x0304, 51, 40)).expect("known");
        // Offsets of struct tls12_crypto_info_aes_gcm_128: iv 4, key 12, salt 28, rec_seq 32.
        assert_eq!(read.nonce, [28, 29, 30, 31, 4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(read.key(), (12..28).collect::<Vec<u8>>());
        assert_eq!(read.sequence, u64::from_be_bytes([32, 33, 34, 35, 36, 37, 38, 39]));
        let read = Parameters::read(&info(0x0304, 54, 56)).expect("known");
        assert_eq!(read.nonce, [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn what_is_not_known_is_refused_as_linux_refuses_it() {
        for (version, cipher, len) in
            [(0x0302, 51, 40), (0x0304, 53, 40), (0x0304, 51, 39), (0x0304, 51, 41), (0x0303, 52, 40)]
        {
            assert_eq!(Parameters::read(&info(version, cipher, len)).err(), Some(Errno::EINVAL));
        }
        for len in 0..INFO_LEN {
            assert_eq!(Parameters::read(&vec![3; len]).err(), Some(Errno::EINVAL));
        }
    }
}
