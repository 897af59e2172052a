// SPDX-License-Identifier: Apache-2.0
//! Which provider, on which interface: what libfabric offers, in the order in which it is tried.

use super::rdm::API;
use super::sys::{self, Info, Library};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::ptr::NonNull;
use tombolo_core::interfaces;
use tombolo_core::library::text_of;

/// What the settings ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Name of a provider, whole or its first part; empty for any.
    pub provider: String,
    /// Name of a domain; empty for any.
    pub domain: String,
    /// Name, address or subnet of a network interface; empty for any.
    pub interface: String,
    /// All PEs are on this machine, so that addresses of the loop-back interface will do, and
    /// nothing else need listen.
    pub one_machine: bool,
    /// Addresses of this host in networks of all hosts, the best first.
    pub shared: Vec<IpAddr>,
    /// The provider is to carry out atomic operations.
    pub atomics: bool,
    /// Nothing but providers whose devices do the work: what others do, the transport `tcp` does.
    pub only_devices: bool,
    /// The job may go on without a peer or an interface that fails: what these have sent must not arrive
    /// afterwards.
    pub closes: bool,
}

/// A provider on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Name of the provider.
    pub provider: String,
    /// Name of the domain: for providers over IP the interface.
    pub domain: String,
    /// The address that others will use, where it is an IP address.
    pub address: Option<IpAddr>,
    /// Of the endpoint's protocol.
    pub protocol: u32,
    info: usize,
}

impl Candidate {
    /// For people.
    pub fn describe(&self) -> String {
        match self.address {
            Some(address) => format!("{} on {} ({address})", self.provider, self.domain),
            None => format!("{} on {}", self.provider, self.domain),
        }
    }
}

/// What libfabric offers.
pub struct Offers {
    library: &'static Library,
    lists: Vec<*mut Info>,
    /// In the order in which they are to be tried.
    pub candidates: Vec<Candidate>,
    /// Why something was left out, and what.
    pub left_out: Vec<String>,
}

// SAFETY: the lists are owned and only read.
unsafe impl Send for Offers {}

impl Offers {
    /// Asks libfabric. An error if there is nothing that fits the wish.
    pub fn find(library: &'static Library, wish: &Wish) -> Result<Offers, String> {
        let mut offers = Offers { library, lists: vec![], candidates: vec![], left_out: vec![] };
        // First those that keep the order of puts, which makes `fence` free.
        let sends = sys::ORDER_SAS;
        for order in [sends | sys::ORDER_SAW | sys::ORDER_WAW, sends] {
            offers.ask(order, wish.atomics)?;
        }
        if let Some(why) = missing(&offers.candidates, wish) {
            return Err(why);
        }
        let found = offers.candidates.len();
        let mut left_out: Vec<(String, Vec<String>)> = vec![];
        offers.candidates.retain(|candidate| {
            let Some(why) = unfit(candidate, wish) else { return true };
            match left_out.iter_mut().find(|(reason, _)| *reason == why) {
                Some((_, others)) => others.push(candidate.describe()),
                None => left_out.push((why, vec![candidate.describe()])),
            }
            false
        });
        let told = left_out.into_iter().map(|(why, those)| format!("{why}: {}", those.join(", ")));
        offers.left_out = told.collect();
        // Stable: among equals the order of libfabric, which knows the speed of interfaces.
        offers.candidates.sort_by_key(|candidate| wish.rank(candidate));
        if offers.candidates.is_empty() {
            return Err(format!(
                "none of the {found} offers of libfabric fits{}{}",
                wish.words(),
                said(&offers.left_out)
            ));
        }
        Ok(offers)
    }

    /// Adds what has the given order of messages and was not there before.
    fn ask(&mut self, order: u64, atomics: bool) -> Result<(), String> {
        // SAFETY: hints are made, filled in and freed here; attributes exist in hints from
        // `fi_dupinfo(NULL)`; the list is kept until `self` goes.
        let list = unsafe {
            let hints = (self.library.functions.dupinfo)(std::ptr::null());
            let hints = NonNull::new(hints).ok_or("fi_allocinfo: no memory")?.as_ptr();
            (*hints).caps = sys::RMA | sys::MSG | if atomics { sys::ATOMIC } else { 0 };
            (*hints).mode = sys::CONTEXT | sys::CONTEXT2;
            (*(*hints).ep_attr).kind = sys::EP_RDM;
            (*(*hints).tx_attr).msg_order = order;
            (*(*hints).rx_attr).msg_order = order;
            let domain = &mut *(*hints).domain_attr;
            domain.mr_mode = sys::MR_LOCAL
                | sys::MR_VIRT_ADDR
                | sys::MR_ALLOCATED
                | sys::MR_PROV_KEY
                | sys::MR_ENDPOINT;
            domain.threading = sys::THREAD_DOMAIN;
            domain.control_progress = sys::PROGRESS_MANUAL;
            domain.data_progress = sys::PROGRESS_MANUAL;
            domain.resource_mgmt = sys::RM_ENABLED;
            let found = self.library.getinfo(API, hints);
            (self.library.functions.freeinfo)(hints);
            // None with this order is no error: there may be others.
            found.unwrap_or(std::ptr::null_mut())
        };
        self.lists.push(list);
        let mut next = list;
        while let Some(info) = NonNull::new(next) {
            // SAFETY: an element of the list.
            let candidate = unsafe { read(info) };
            // SAFETY: as above.
            next = unsafe { info.as_ref() }.next;
            if !self.candidates.iter().any(|one| one.is_like(&candidate)) {
                self.candidates.push(candidate);
            }
        }
        Ok(())
    }

    /// What opens the endpoint of a candidate. Valid as long as the offers are.
    pub fn info(&self, candidate: &Candidate) -> NonNull<Info> {
        NonNull::new(candidate.info as *mut Info).expect("made from an element of the list")
    }
}

impl Drop for Offers {
    fn drop(&mut self) {
        for list in self.lists.drain(..).filter(|list| !list.is_null()) {
            // SAFETY: from `fi_getinfo`, and no longer used.
            unsafe { (self.library.functions.freeinfo)(list) };
        }
    }
}

impl Candidate {
    /// Whether a provider is named so, whole or by its first part.
    fn is_of(&self, provider: &str) -> bool {
        self.provider == provider || self.provider.split(';').next() == Some(provider)
    }

    /// Whether it is the same provider on the same interface.
    pub fn is_like(&self, other: &Candidate) -> bool {
        let key =
            |one: &Candidate| (one.provider.clone(), one.domain.clone(), one.address, one.protocol);
        key(self) == key(other)
    }
}

impl Wish {
    /// Whether a setting asks for something.
    pub fn names_something(&self) -> bool {
        !(self.provider.is_empty() && self.domain.is_empty() && self.interface.is_empty())
            || self.atomics
    }

    /// The candidate with the lowest is tried first.
    fn rank(&self, candidate: &Candidate) -> (u32, usize, bool) {
        let is_own = |address: &IpAddr| Some(*address) == candidate.address;
        let shared = self.shared.iter().position(is_own).unwrap_or(self.shared.len());
        let later = candidate.address.is_some_and(|address| address.is_ipv6());
        (rank(&candidate.provider, self.closes), shared, later)
    }

    fn words(&self) -> String {
        let rows = [
            ("SHMEM_OFI_PROVIDER", &self.provider),
            ("SHMEM_OFI_DOMAIN", &self.domain),
            ("SHMEM_OFI_INTERFACE", &self.interface),
        ];
        let set = rows.iter().filter(|(_, value)| !value.is_empty());
        let set: Vec<String> = set.map(|(name, value)| format!(" {name}={value}")).collect();
        set.join(",")
    }
}

fn said(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

/// # Safety
/// An element of a list from `fi_getinfo`.
unsafe fn read(info: NonNull<Info>) -> Candidate {
    // SAFETY: by the caller's word; `fi_getinfo` fills in all attributes.
    unsafe {
        let it = info.as_ref();
        let address = match it.addr_format {
            _ if it.src_addr.is_null() => None,
            sys::SOCKADDR_IN if it.src_addrlen >= size_of::<libc::sockaddr_in>() => {
                let at = it.src_addr.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(at.sin_addr.s_addr))))
            }
            sys::SOCKADDR_IN6 if it.src_addrlen >= size_of::<libc::sockaddr_in6>() => {
                let at = it.src_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(IpAddr::V6(Ipv6Addr::from(at.sin6_addr.s6_addr)))
            }
            _ => None,
        };
        Candidate {
            provider: text_of((*it.fabric_attr).prov_name),
            domain: text_of((*it.domain_attr).name),
            address,
            protocol: (*it.ep_attr).protocol,
            info: info.as_ptr() as usize,
        }
    }
}

/// Whether this host has devices for which libfabric has providers of their own: RDMA cards, EFA, Omni-Path, Slingshot.
/// To load the library and ask it takes a tenth of a second and more of each PE.
pub fn has_fast_devices(root: &Path) -> bool {
    let has_some = |class: &str| {
        let entries = std::fs::read_dir(root.join("sys/class").join(class));
        entries.is_ok_and(|mut entries| entries.next().is_some())
    };
    ["infiniband", "cxi", "hfi1"].into_iter().any(has_some)
}

/// Providers of devices that do the work themselves: EFA, Slingshot, Omni-Path, RDMA cards. Not those that do it on one
/// machine by a device and on another by sockets or memory, such as psm3, ucx and lnx.
const HARDWARE: [&str; 5] = ["efa", "cxi", "opx", "psm2", "verbs"];
/// Providers that reach PEs of their own host only.
const ONE_HOST: [&str; 2] = ["shm", "sm2"];

/// Lower is tried earlier: hardware that does the work itself, then software by its speed, after that which
/// closes connections if these are to be closed. Of providers that are not known nothing is expected.
fn rank(provider: &str, closes: bool) -> u32 {
    match provider {
        _ if is_hardware(provider) => 0,
        // Without a layer above TCP, which takes system calls and copies of its own for each message. It is
        // called "net" before libfabric 1.18. It keeps the connection with an address that is removed.
        "tcp" | "net" if closes => 4,
        "tcp" | "net" => 1,
        "tcp;ofi_rxm" => 2,
        "net;ofi_rxm" => 3,
        "udp;ofi_rxd" => 5,
        "sockets" => 6,
        _ if ONE_HOST.contains(&provider) => 8,
        _ => 7,
    }
}

/// Whether a provider, by its first part, is one of devices.
fn is_hardware(provider: &str) -> bool {
    provider.split(';').next().is_some_and(|first| HARDWARE.contains(&first))
}

/// Whether the target's processor does the work of a provider, or may do so.
pub fn is_software(provider: &str) -> bool {
    !is_hardware(provider)
}

/// Whether a provider may call a put complete before its data can be read at the target, although it is asked not to:
/// libfabric's verbs (1.17) takes the word of its card. The transport `verbs` reads behind its puts.
pub fn is_early(provider: &str) -> bool {
    provider.split(';').next() == Some("verbs")
}

/// That there is no provider or domain of a name that was asked for, with those that there are.
fn missing(candidates: &[Candidate], wish: &Wish) -> Option<String> {
    let none = |kind: &str, name: &str, known: &dyn Fn(&Candidate) -> String| {
        let mut names: Vec<String> = Vec::new();
        for other in candidates.iter().map(known) {
            if !names.contains(&other) {
                names.push(other);
            }
        }
        // Others were not asked for.
        let able = if wish.atomics { " with atomic operations" } else { "" };
        format!("libfabric has no {kind} '{name}'{able}; it has: {}", names.join(", "))
    };
    let (provider, domain) = (&wish.provider, &wish.domain);
    match candidates {
        [] => None,
        all if !provider.is_empty() && !all.iter().any(|one| one.is_of(provider)) => {
            Some(none("provider", provider, &|one| one.provider.clone()))
        }
        all if !domain.is_empty() && !all.iter().any(|one| one.domain == *domain) => {
            Some(none("domain", domain, &|one| one.domain.clone()))
        }
        _ => None,
    }
}

/// Why a candidate is not taken, if it is not.
fn unfit(candidate: &Candidate, wish: &Wish) -> Option<String> {
    let provider = &candidate.provider;
    if !wish.provider.is_empty() && !candidate.is_of(&wish.provider) {
        return Some("another provider is asked for".into());
    }
    if !wish.domain.is_empty() && wish.domain != candidate.domain {
        return Some("another domain is asked for".into());
    }
    if !wish.interface.is_empty()
        && !interfaces::is_on(&candidate.domain, candidate.address, &wish.interface)
    {
        return Some("another interface is asked for".into());
    }
    if wish.only_devices && is_software(provider) {
        return Some("the transport tcp does the same without libfabric".into());
    }
    if is_early(provider) && wish.provider.is_empty() {
        return Some("it may call a put complete before its data can be read at the target".into());
    }
    if provider == "udp;ofi_rxd" && wish.atomics {
        // Seen with libfabric 1.17: closing its endpoint waits for ever.
        return Some("it does not end after atomic operations on the PE itself".into());
    }
    if ONE_HOST.contains(&provider.as_str()) && (wish.provider.is_empty() || !wish.one_machine) {
        return Some("it reaches PEs of one host only".into());
    }
    let address = candidate.address?;
    if interfaces::is_link_local(address) {
        return Some("a link-local address".into());
    }
    // Whoever names an interface gets it.
    if !wish.interface.is_empty() || !wish.domain.is_empty() {
        return None;
    }
    match (address.is_loopback(), wish.one_machine) {
        (true, false) => Some("it reaches this host only".into()),
        // Cards have no interface that only this machine reaches.
        (false, true) if is_software(provider) => Some("all PEs are on this machine".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(provider: &str, domain: &str, address: &str) -> Candidate {
        let (provider, domain) = (provider.to_owned(), domain.to_owned());
        Candidate { provider, domain, address: address.parse().ok(), protocol: 0, info: 0 }
    }

    #[test]
    fn a_job_of_one_machine_listens_on_loopback_only_and_others_never_do() {
        let lo = candidate("tcp;ofi_rxm", "lo", "127.0.0.1");
        let eth = candidate("tcp;ofi_rxm", "eth0", "10.0.0.1");
        let here = Wish { one_machine: true, ..Wish::default() };
        let apart = Wish::default();
        assert!(unfit(&lo, &here).is_none() && unfit(&eth, &here).is_some());
        assert!(unfit(&lo, &apart).is_some() && unfit(&eth, &apart).is_none());
        let link_local = candidate("tcp;ofi_rxm", "eth0", "fe80::1");
        assert!(unfit(&link_local, &apart).is_some());
        let shm = candidate("shm", "shm", "");
        assert!(unfit(&shm, &apart).is_some() && unfit(&shm, &here).is_some());
        assert!(unfit(&shm, &Wish { provider: "shm".into(), ..here }).is_none());
    }

    #[test]
    fn a_provider_is_named_whole_or_by_its_first_part() {
        let eth = candidate("tcp;ofi_rxm", "eth0", "10.0.0.1");
        let asking = |provider: &str| Wish { provider: provider.into(), ..Wish::default() };
        // By itself this one is not taken.
        let card = candidate("verbs;ofi_rxm", "mlx5_0", "10.0.0.1");
        assert!(unfit(&card, &asking("")).is_some() && unfit(&card, &asking("verbs")).is_none());
        assert!(unfit(&eth, &asking("tcp")).is_none());
        assert!(unfit(&eth, &asking("tcp;ofi_rxm")).is_none());
        assert!(unfit(&eth, &asking("udp")).is_some());
    }

    #[test]
    fn a_name_that_libfabric_does_not_have_is_answered_by_those_that_it_has() {
        let all = [
            candidate("tcp;ofi_rxm", "eth0", "10.0.0.1"),
            candidate("tcp;ofi_rxm", "lo", "127.0.0.1"),
            candidate("net", "eth0", "10.0.0.1"),
        ];
        let asking = |provider: &str, domain: &str| Wish {
            provider: provider.into(),
            domain: domain.into(),
            ..Wish::default()
        };
        let why = missing(&all, &asking("bogus", ""));
        assert_eq!(why.unwrap(), "libfabric has no provider 'bogus'; it has: tcp;ofi_rxm, net");
        let why = missing(&all, &asking("tcp", "ib0"));
        assert_eq!(why.unwrap(), "libfabric has no domain 'ib0'; it has: eth0, lo");
        assert_eq!(missing(&all, &asking("tcp", "lo")), None);
        assert_eq!(missing(&[], &asking("bogus", "")), None);
        let atomics = Wish { atomics: true, ..asking("bogus", "") };
        assert!(
            missing(&all, &atomics).unwrap().contains("'bogus' with atomic operations; it has")
        );
    }

    #[test]
    fn only_devices_are_wanted_where_another_transport_does_the_rest() {
        let wish = Wish { only_devices: true, ..Wish::default() };
        let software = candidate("tcp;ofi_rxm", "eth0", "10.0.0.1");
        let card = candidate("efa", "efa_0", "10.0.0.1");
        assert!(unfit(&software, &wish).is_some() && unfit(&card, &wish).is_none());
        assert!(unfit(&software, &Wish::default()).is_none());
    }

    #[test]
    fn networks_of_all_hosts_come_first_among_those_of_one_provider() {
        let shared = vec!["10.2.0.1".parse().unwrap(), "10.1.0.1".parse().unwrap()];
        let wish = Wish { shared, ..Wish::default() };
        let mut candidates = [
            candidate("tcp;ofi_rxm", "a", "10.1.0.1"),
            candidate("tcp;ofi_rxm", "b", "10.3.0.1"),
            candidate("tcp;ofi_rxm", "c", "10.2.0.1"),
            candidate("verbs;ofi_rxm", "d", "10.3.0.1"),
        ];
        candidates.sort_by_key(|candidate| wish.rank(candidate));
        assert_eq!(candidates.map(|one| one.domain), ["d", "c", "a", "b"]);
    }

    #[test]
    fn devices_are_found_where_the_kernel_lists_them() {
        let root = std::env::temp_dir().join(format!("tombolo-devices-{}", std::process::id()));
        let class = root.join("sys/class/infiniband");
        assert!(!has_fast_devices(&root));
        std::fs::create_dir_all(&class).unwrap();
        assert!(!has_fast_devices(&root), "the class alone");
        std::fs::create_dir(class.join("mlx5_0")).unwrap();
        assert!(has_fast_devices(&root));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn hardware_comes_before_software_and_few_layers_before_many() {
        let order =
            ["verbs;ofi_rxm", "net", "tcp;ofi_rxm", "udp;ofi_rxd", "sockets", "psm3", "shm"];
        assert!(order.windows(2).all(|pair| rank(pair[0], false) < rank(pair[1], false)));
    }

    #[test]
    fn providers_that_are_not_known_come_last_and_are_no_devices() {
        let wish = Wish { only_devices: true, ..Wish::default() };
        for name in ["psm3", "ucx", "psm3;ofi_rxd", "tcp;ofi_rxm+shm;ofi_lnx", "newer", "verbsish"]
        {
            let unknown = candidate(name, "one", "");
            for closes in [false, true] {
                for known in
                    ["efa", "verbs;ofi_rxm", "tcp", "tcp;ofi_rxm", "udp;ofi_rxd", "sockets"]
                {
                    assert!(rank(known, closes) < rank(name, closes), "{known} {name}");
                }
            }
            assert!(is_software(name), "{name}");
            assert!(unfit(&unknown, &wish).is_some(), "{name}");
            // Where nothing else is offered, and where it is named, it is taken.
            assert!(unfit(&unknown, &Wish::default()).is_none(), "{name}");
        }
        for name in ["efa", "cxi", "opx", "psm2", "verbs;ofi_rxm", "verbs;ofi_rxd"] {
            assert!(!is_software(name) && rank(name, true) == 0, "{name}");
        }
        let memory = candidate("sm2", "sm2", "");
        assert!(unfit(&memory, &Wish::default()).is_some(), "it reaches this host only");
    }

    #[test]
    fn where_connections_are_to_be_closed_those_that_stay_open_come_later() {
        let order = ["verbs;ofi_rxm", "tcp;ofi_rxm", "net", "udp;ofi_rxd", "sockets"];
        assert!(order.windows(2).all(|pair| rank(pair[0], true) < rank(pair[1], true)));
    }
}
