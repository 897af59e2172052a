use super::*;
use crate::ntb::port::conformance::CASES;

fn spec(profile: Profile, speed: Speed) -> FabricSpec {
    FabricSpec { profile, speed, window_size: Some(1 << 20), ..FabricSpec::new(3) }
}

/// Both ends of link 0: host 0 on its right, host 1 on its left.
fn link(fabric: &Fabric) -> (Arc<EmulatedPort>, Arc<EmulatedPort>) {
    (fabric.ports(0).unwrap().right, fabric.ports(1).unwrap().left)
}

/// Runs the conformance suite on a fresh link for every case.
fn conform(spec: &FabricSpec) {
    for (name, case) in CASES {
        let fabric = Fabric::create(spec).unwrap();
        let (a, b) = link(&fabric);
        println!("{} {:?} {name}", spec.profile, spec.speed);
        case(&*a, &*b);
    }
}

#[test]
fn every_profile_conforms_in_direct_speed() {
    for profile in Profile::ALL {
        conform(&spec(profile, Speed::Direct));
    }
}

#[test]
fn every_profile_conforms_in_modelled_speed() {
    for profile in Profile::ALL {
        conform(&spec(profile, Speed::Modelled));
    }
}

#[test]
fn every_profile_conforms_with_adversarial_write_combining() {
    for profile in Profile::ALL {
        let write_combining = WriteCombining::Adversarial;
        conform(&FabricSpec { write_combining, ..spec(profile, Speed::Direct) });
    }
}

#[test]
fn every_profile_conforms_with_its_own_windows() {
    for profile in Profile::ALL {
        conform(&FabricSpec { window_size: None, ..spec(profile, Speed::Direct) });
    }
}
