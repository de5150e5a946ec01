//! Owns which hosts are never called: link-local ones, at which clouds hand out the credentials of a machine.
//! A name is checked after it was looked up, because a name may lead anywhere.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Looks up names, and leaves out such addresses.
pub(crate) struct BeyondTheLink;

impl Resolve for BeyondTheLink {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let (beyond, link): (Vec<SocketAddr>, Vec<SocketAddr>) =
                found.partition(|address| !is_of_the_link(address.ip()));
            if beyond.is_empty() && !link.is_empty() {
                return Err(io::Error::other("the host has only link-local addresses").into());
            }
            let addresses: Addrs = Box::new(beyond.into_iter());
            Ok(addresses)
        })
    }
}

/// Whether an address is link-local, or one at which a cloud keeps an instance's credentials: of AWS over
/// IPv6, and of Alibaba.
pub(crate) fn is_of_the_link(address: IpAddr) -> bool {
    const CREDENTIALS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    let is_v4 = |address: Ipv4Addr| {
        address.is_link_local()
            || address.is_unspecified()
            || address == Ipv4Addr::new(100, 100, 100, 200)
    };
    match address {
        IpAddr::V4(address) => is_v4(address),
        IpAddr::V6(address) => {
            address.is_unicast_link_local()
                || address == CREDENTIALS
                || address.is_unspecified()
                || v4_within(address).is_some_and(is_v4)
        }
    }
}

/// Returns the address that a gateway or a tunnel would call: one written in IPv6 (RFC 4291), or behind a
/// prefix of NAT64 (RFC 6052, 8215) or of 6to4 (RFC 3056).
fn v4_within(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let ([0, 0, 0, 0, 0, 0 | 0xffff, high, low]
    | [0, 0, 0, 0, 0xffff, 0, high, low]
    | [0x64, 0xff9b, 0 | 1, .., high, low]
    | [0x2002, high, low, ..]) = address.segments()
    else {
        return None;
    };
    Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_leads_to_the_link_is_one_of_the_link() {
        for link in [
            "169.254.169.254",
            "0.0.0.0",
            "100.100.100.200",
            "fe80::1",
            "fd00:ec2::254",
            "::",
            "::ffff:169.254.169.254",
            "::ffff:0:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "64:ff9b:1:7:8:9:a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "64:ff9b::6464:64c8",
        ] {
            assert!(is_of_the_link(link.parse().unwrap()), "{link}");
        }
        for other in [
            "10.0.0.1",
            "::1",
            "127.0.0.1",
            "64:ff9b::8.8.8.8",
            "fd00::1",
        ] {
            assert!(!is_of_the_link(other.parse().unwrap()), "{other}");
        }
    }
}
