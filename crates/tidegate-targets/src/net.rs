//! Owns which hosts are never called: those of the link, where clouds keep the credentials of a machine. A
//! name is checked after it was looked up, because a name may lead anywhere.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Looks up names, and leaves out addresses of the link.
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

/// Whether an address is link-local, or the one at which AWS keeps an instance's credentials.
pub(crate) fn is_of_the_link(address: IpAddr) -> bool {
    const CREDENTIALS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => {
            address.is_unicast_link_local() || address == CREDENTIALS || address.is_unspecified()
        }
    }
}
