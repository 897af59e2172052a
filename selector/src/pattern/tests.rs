use super::*;
use proptest::prelude::*;

/// 100 ns and 0.1 ns per byte on a host; 10 us per hop and 1 ns per byte over the ring.
fn cost(class: Class, _: Operation, bytes: u64) -> Option<f64> {
    match class {
        Class::Own | Class::Cache => Some(100.0 + bytes as f64 * 0.1),
        Class::Ring(hops) => Some(1e4 * f64::from(hops) + bytes as f64),
        _ => None,
    }
}

fn predicted(layout: &Layout, pattern: Pattern, by: By, bytes: u64) -> f64 {
    let costs = Costs { of: &cost, local: Some(Class::Cache) };
    estimate(&costs, layout, pattern, by, bytes).unwrap()
}

#[test]
fn what_was_not_measured_is_not_guessed() {
    let costs = Costs { of: &|_, _, _| None, local: None };
    let ring = Layout::regular(3, 4, 4);
    assert_eq!(estimate(&costs, &ring, Pattern::Gather, By::Put, 8), None);
}

proptest! {
    #[test]
    fn more_bytes_never_take_less(
        hosts in 1usize..5, pes in 1usize..5, cpus in 1usize..5, bytes in 8u64..(1 << 24), more in 0u64..(1 << 20)
    ) {
        let layout = Layout::regular(hosts, pes, cpus);
        for (_, pattern) in Pattern::ALL {
            for (_, by) in By::ALL {
                let less = predicted(&layout, pattern, by, bytes);
                prop_assert!(predicted(&layout, pattern, by, bytes + more) >= less);
            }
        }
    }
}
