//! Owns the address of a client, and what counts as one client.

use std::net::IpAddr;

/// The address that a request comes from, if known; that of the proxy if there is one in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peer(pub Option<IpAddr>);

impl Peer {
    /// The address for counting what one client does. In IPv6, one client usually has a network of 64 bits.
    #[must_use]
    pub fn network(self) -> Option<IpAddr> {
        self.0.map(|address| match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => address,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_client_does_is_counted_by_its_address_or_its_ipv6_network() {
        for (one, other, same) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("::ffff:192.0.2.1", "192.0.2.1", true),
            ("2001:db8::1", "2001:db8::2:3:4:5", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            let network = |text: &str| Peer(text.parse().ok()).network();
            assert_eq!(network(one) == network(other), same, "{one} {other}");
        }
    }
}
