// SPDX-License-Identifier: Apache-2.0
//! A peer: how it is addressed, and the connection to it.

use super::amos::Domain;
use super::card::{Card, Port, PortAddress, Refused};
use super::hello::{Hello, Progress};
use super::queue::Queue;
use super::sys::{self, Ah, Gid, Qp, QpAttr};
use crate::network::RemoteAddress;
use std::ptr::null_mut;

/// Changes with the form of addresses and messages, and with what datagrams must have.
const FORM: u8 = 3;
/// Bytes of an address.
const ADDRESS: usize = 1 + 1 + 1 + 2 + 16 + 4 + 8 + 1;

/// The time without an acknowledgement after which something is sent again is 4 us times 2 to the power
/// of this; it is sent up to seven times before the peer is given up. Packets may be lost where the
/// network drops them, and then it should not take long; but a device that is software stops with
/// its host, for seconds on one that is overloaded.
const CARD_TIMEOUT: u8 = 16;
/// See `CARD_TIMEOUT`.
const SOFTWARE_TIMEOUT: u8 = 18;
const RETRIES: u8 = 7;
/// Wait, without limit, while the target has no buffer for a message.
const WITHOUT_LIMIT: u8 = 7;
/// Time to wait then, as the interface numbers it: 0.64 ms.
const NO_BUFFER: u8 = 12;

/// What a PE tells the others of how it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndAddress {
    pub port: PortAddress,
    /// Reads and atomic operations that it serves at a time on a connection.
    pub reads: u8,
    /// What atomic operations of its card exclude.
    pub domain: Domain,
    /// Its queue pair for datagrams.
    pub queue: u32,
    /// A number that strangers do not know.
    pub id: u64,
}

impl EndAddress {
    /// The address as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORM, self.port.mtu, self.reads];
        bytes.extend(self.port.lid.to_le_bytes());
        bytes.extend(self.port.gid);
        bytes.extend(self.queue.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        bytes.push(self.domain as u8);
        bytes
    }

    /// The address that `encode` made; none if it was something else.
    pub fn decode(bytes: &[u8]) -> Option<EndAddress> {
        let bytes: &[u8; ADDRESS] = bytes.try_into().ok()?;
        let [form, mtu, reads] = *bytes.first_chunk()?;
        let gid: &Gid = bytes[5..].first_chunk()?;
        let is_known = form == FORM && (1..=5).contains(&mtu) && (1..=16).contains(&reads);
        is_known.then_some(EndAddress {
            port: PortAddress {
                lid: u16::from_le_bytes(*bytes[3..].first_chunk()?),
                gid: *gid,
                mtu,
            },
            reads,
            domain: Domain::from_bits(bytes[ADDRESS - 1])?,
            queue: u32::from_le_bytes(*bytes[21..].first_chunk()?),
            id: u64::from_le_bytes(*bytes[25..].first_chunk()?),
        })
    }
}

/// See the module. Whoever owns it closes it before the card.
pub struct Link {
    pub address: EndAddress,
    /// The way to its queue pair for datagrams; null until it is needed.
    pub ah: *mut Ah,
    /// Null until it is needed, and when the peer was given up.
    pub qp: *mut Qp,
    /// Number of the first packet that is sent.
    pub packet: u32,
    pub progress: Progress,
    pub queue: Queue,
    /// Something is to be sent to it.
    pub is_wanted: bool,
    /// When it was last said hello to.
    pub said_ns: u64,
    /// Its queue has writes that are to be shown to be readable.
    pub is_listed: bool,
    /// What is posted next follows all reads that were posted.
    pub is_fenced: bool,
    /// Where the last write went.
    pub place: RemoteAddress,
    /// It was given up.
    pub is_gone: bool,
}

impl Link {
    /// A peer to which nothing was sent.
    pub fn new(address: EndAddress, packet: u32, ends_prove: bool) -> Link {
        Link {
            address,
            ah: null_mut(),
            qp: null_mut(),
            packet: packet & 0xff_ffff,
            progress: Progress::default(),
            queue: Queue::new(ends_prove),
            is_wanted: false,
            said_ns: 0,
            is_listed: false,
            is_fenced: false,
            place: RemoteAddress { address: 0, key: 0 },
            is_gone: false,
        }
    }

    /// Makes the queue pair, if there is none.
    pub fn prepare(&mut self, card: &mut Card, port: &Port) -> Result<(), String> {
        if !self.qp.is_null() {
            return Ok(());
        }
        self.qp = card.connection()?;
        Ok(self.begin(card, port)?)
    }

    /// Brings the queue pair to where it can be connected.
    fn begin(&self, card: &Card, port: &Port) -> Result<(), Refused> {
        let access = card.remote_access();
        let attr = QpAttr {
            qp_state: sys::QPS_INIT,
            port_num: port.number,
            qp_access_flags: access as u32,
            ..QpAttr::default()
        };
        let mask = sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS;
        card.modify(self.qp, attr, mask)
    }

    /// Takes back what has become of connecting the queue pair, which keeps its number.
    pub fn disconnect(&mut self, card: &Card, port: &Port) -> Result<(), Refused> {
        self.progress.undo();
        card.modify(self.qp, QpAttr { qp_state: sys::QPS_RESET, ..QpAttr::default() }, 0)?;
        self.begin(card, port)
    }

    /// Connects the queue pair to that of the peer.
    pub fn connect(
        &mut self,
        card: &Card,
        port: &Port,
        hello: &Hello,
        is_software: bool,
    ) -> Result<(), Refused> {
        let theirs = &self.address;
        let attr = QpAttr {
            qp_state: sys::QPS_RTR,
            path_mtu: port.address.mtu.min(theirs.port.mtu).into(),
            dest_qp_num: hello.queue,
            rq_psn: hello.packet & 0xff_ffff,
            max_dest_rd_atomic: card.reads.1,
            min_rnr_timer: NO_BUFFER,
            ah_attr: port.way_to(&theirs.port),
            ..QpAttr::default()
        };
        let mask = sys::QP_AV
            | sys::QP_PATH_MTU
            | sys::QP_DEST_QPN
            | sys::QP_RQ_PSN
            | sys::QP_MAX_DEST_RD_ATOMIC
            | sys::QP_MIN_RNR_TIMER;
        card.modify(self.qp, attr, mask)?;
        let attr = QpAttr {
            qp_state: sys::QPS_RTS,
            timeout: if is_software { SOFTWARE_TIMEOUT } else { CARD_TIMEOUT },
            retry_cnt: RETRIES,
            rnr_retry: WITHOUT_LIMIT,
            sq_psn: self.packet,
            max_rd_atomic: card.reads.0.min(theirs.reads),
            ..QpAttr::default()
        };
        let mask = sys::QP_TIMEOUT
            | sys::QP_RETRY_CNT
            | sys::QP_RNR_RETRY
            | sys::QP_SQ_PSN
            | sys::QP_MAX_QP_RD_ATOMIC;
        card.modify(self.qp, attr, mask)
    }

    /// Has the queue pair take and send nothing more.
    pub fn stop(&mut self, card: &Card) {
        self.is_gone = true;
        if !self.qp.is_null() {
            let attr = QpAttr { qp_state: sys::QPS_ERR, ..QpAttr::default() };
            // One that refuses is closed as it is.
            let _ = card.modify(self.qp, attr, 0);
        }
    }

    /// Closes the connection: nothing arrives and no buffer is used any more.
    pub fn close(&mut self, card: &Card) {
        self.is_gone = true;
        // SAFETY: made on this card and closed once.
        unsafe {
            if !self.qp.is_null() {
                (card.library.destroy_qp)(self.qp);
            }
            if !self.ah.is_null() {
                (card.library.destroy_ah)(self.ah);
            }
        }
        (self.qp, self.ah) = (null_mut(), null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_address_comes_back_as_it_was_and_a_torn_one_does_not(
            lid: u16, gid: Gid, mtu in 1u8..=5, reads in 1u8..=16, domain in 0u8..=2, queue: u32, id: u64,
        ) {
            let port = PortAddress { lid, gid, mtu };
            let domain = Domain::from_bits(domain).unwrap();
            let address = EndAddress { port, reads, domain, queue, id };
            let bytes = address.encode();
            prop_assert_eq!(EndAddress::decode(&bytes), Some(address));
            prop_assert_eq!(EndAddress::decode(&bytes[1..]), None);
            prop_assert_eq!(EndAddress::decode(&[&bytes[..], &[0]].concat()), None);
        }

        #[test]
        fn garbage_is_no_address(bytes in prop::collection::vec(any::<u8>(), ADDRESS)) {
            if let Some(address) = EndAddress::decode(&bytes) {
                prop_assert_eq!(address.encode(), bytes);
            }
        }
    }
}
