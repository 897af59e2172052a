// SPDX-License-Identifier: Apache-2.0
//! All environment variables: the core's and those of every transport, as one table.

use crate::transports;
use tombolo_collectives::table as algorithms;
use tombolo_core::config::{Audience, CoreSettings, Environment, Row, Shown, Table, Variable};
use tombolo_core::{Config, Error, Result};
use tombolo_selector::force;
use tombolo_transports::{NAMES, ON_REQUEST, create};

/// Variables of other implementations that scripts set for all of them, or that name where one is
/// installed. A family ends with an underscore; it counts unless there are variables of ours in it.
const FOREIGN: [&str; 41] = [
    // OpenMPI, Sandia OpenSHMEM, OSSS-UCX, Cray and SGI.
    "SHMEM_BACKTRACE",
    "SHMEM_BARRIERS_FLUSH",
    "SHMEM_BARRIER_",
    "SHMEM_BCAST_",
    "SHMEM_BOUNCE_SIZE",
    "SHMEM_CMA_",
    "SHMEM_COLLECT_",
    "SHMEM_COLL_",
    "SHMEM_DISABLE_",
    "SHMEM_FCOLLECT_",
    "SHMEM_HEAP_TYPE",
    "SHMEM_LOGGING",
    "SHMEM_LOGGING_",
    "SHMEM_MAX_BOUNCE_BUFFERS",
    "SHMEM_MEMFATAL",
    "SHMEM_PORTALS4_",
    "SHMEM_PROGRESS_",
    "SHMEM_REDUCE_",
    "SHMEM_SYMMETRIC_HEAP_",
    "SHMEM_SYMMETRIC_PARTITION",
    "SHMEM_SYNC_",
    "SHMEM_TEAMS_MAX",
    "SHMEM_TEAM_",
    "SHMEM_TRAP_ON_ABORT",
    "SHMEM_UCX_",
    "SHMEM_USE_",
    "SHMEM_XPMEM_",
    "SMA_BAR_COUNTER",
    "SMA_GLOBAL_ALLOC_SIZE",
    "SMA_GLOBAL_HEAP_SIZE",
    "SMA_SYMMETRIC_PARTITION",
    // Of build scripts.
    "SHMEM_CC",
    "SHMEM_CFLAGS",
    "SHMEM_DIR",
    "SHMEM_HOME",
    "SHMEM_INC",
    "SHMEM_INSTALL_DIR",
    "SHMEM_LDFLAGS",
    "SHMEM_LIB",
    "SHMEM_PATH",
    "SHMEM_ROOT",
];

/// How like a name another must be to be suggested, of 1.
const LIKE: f64 = 0.6;

fn tables() -> impl Iterator<Item = Table> {
    let of_transports =
        NAMES.iter().chain(ON_REQUEST).filter_map(|name| create(name)).map(|t| t.settings());
    std::iter::once(CoreSettings::TABLE).chain(of_transports)
}

/// All variables, in the order in which they are listed to people.
pub fn all() -> impl Iterator<Item = &'static Variable> {
    let of = |audience| {
        let variables = tables().flat_map(|table| table.variables);
        variables.filter(move |variable| variable.audience == audience)
    };
    of(Audience::User).chain(of(Audience::Launcher))
}

/// All variables with their values, in the same order; the first value that cannot be parsed is an
/// error.
pub fn rows(config: &Config) -> Result<Vec<Row>> {
    let mut rows = config.rows();
    for table in tables().skip(1) {
        rows.extend((table.rows)(config.environment())?);
    }
    rows.sort_by_key(|row| row.variable.audience == Audience::Launcher);
    Ok(rows)
}

/// All variables in the same order, each with its value in `environment` or with what is wrong with it.
pub fn each(environment: &Environment) -> Vec<(&'static Variable, Result<Row>)> {
    let of = |table: Table| table.variables.iter().zip((table.each)(environment));
    let mut each: Vec<_> = tables().flat_map(of).collect();
    each.sort_by_key(|(variable, _)| variable.audience == Audience::Launcher);
    each
}

/// An error if `SHMEM_ROUTE` cannot be understood.
pub(crate) fn check_route(config: &Config) -> Result<()> {
    let (name, value) = ("SHMEM_ROUTE".to_owned(), config.route.clone());
    force::parse(&config.route, &[NAMES, ON_REQUEST].concat())
        .map(drop)
        .map_err(|why| Error::Config { name, value, why })
}

/// An error if `SHMEM_COLL` names what there is none of.
pub(crate) fn check_algorithms(config: &Config) -> Result<()> {
    let (name, value) = ("SHMEM_COLL".to_owned(), Shown(&config.coll).to_string());
    algorithms::check(&config.coll).map_err(|why| Error::Config { name, value, why })
}

/// The configuration that `environment` gives, without the variables whose values cannot be parsed.
pub fn readable(mut environment: Environment) -> Config {
    loop {
        match Config::from_environment(environment.clone()) {
            Ok(config) => return config,
            Err(Error::Config { name, .. }) if environment.remove(&name) => {}
            Err(_) => return Config::default(),
        }
    }
}

/// Everything that is wrong with the variables of an environment, and what people should know of them.
pub fn mistakes(environment: &Environment) -> Vec<String> {
    let config = readable(environment.clone());
    let meant = [transports::check(&config), check_route(&config), check_algorithms(&config)];
    let values = each(environment).into_iter().filter_map(|(_, row)| row.err());
    let all = values.chain(meant.into_iter().filter_map(Result::err));
    all.map(|error| error.to_string()).chain(notices(environment)).collect()
}

/// What people should know of the variables they have set: names that there are none of, and names
/// that are not the usual ones.
pub fn notices(environment: &Environment) -> Vec<String> {
    let set = environment.names().filter(|name| !name.starts_with("TOMBOLO_"));
    set.filter_map(|name| {
        if all().any(|variable| variable.name == name) {
            return None;
        }
        if let Some(variable) = all().find(|variable| variable.aliases.contains(&name)) {
            let lookup = |name: &str| environment.text(name).map(str::to_owned);
            let counts = variable.find(lookup).is_some_and(|(found, _)| found == name);
            // The standard deprecates the names that begin with SMA, and has them honoured.
            let usual = name.starts_with("SMA_") || !counts;
            return (!usual)
                .then(|| format!("{name} is another name of {}; use that one", variable.name));
        }
        if is_foreign(name) {
            return None;
        }
        let likeness = |variable: &&Variable| {
            strsim::normalized_damerau_levenshtein(own_part(name), own_part(variable.name))
        };
        let users = all().filter(|variable| variable.audience == Audience::User);
        let nearest = users.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        Some(match nearest.filter(|nearest| likeness(nearest) >= LIKE) {
            Some(nearest) => format!(
                "there is no environment variable {name}, it is ignored; did you mean {}?",
                nearest.name
            ),
            None => format!(
                "there is no environment variable {name}, it is ignored; oshinfo lists all that \
                 exist"
            ),
        })
    })
    .collect()
}

/// A name without what all begin with, which would make each like the others.
fn own_part(name: &str) -> &str {
    ["SHMEM_", "SMA_"].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

fn is_foreign(name: &str) -> bool {
    FOREIGN.iter().any(|foreign| match foreign.ends_with('_') {
        true => name.starts_with(foreign) && !all().any(|own| own.name.starts_with(foreign)),
        false => name == *foreign,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noticed(pairs: &[(&str, &str)]) -> Vec<String> {
        notices(&pairs.iter().copied().collect())
    }

    #[test]
    fn no_two_variables_have_one_name() {
        let mut names: Vec<&str> =
            all().flat_map(|v| std::iter::once(v.name).chain(v.aliases.iter().copied())).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for variable in all() {
            let prefix = match variable.audience {
                Audience::User => "SHMEM_",
                Audience::Launcher => "TOMBOLO_",
            };
            assert!(variable.name.starts_with(prefix), "{}", variable.name);
        }
    }

    #[test]
    fn values_are_listed_in_the_order_of_the_variables() {
        let rows = rows(&Config::default()).unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row.variable.name).collect();
        assert_eq!(names, all().map(|variable| variable.name).collect::<Vec<_>>());
    }

    #[test]
    fn one_wrong_value_hides_no_other() {
        let wrong = [
            ("SHMEM_SYMMETRIC_SIZE", "abc"),
            ("SHMEM_NTB_LANES", "x"),
            ("SHMEM_TRANSPORTS", "foo"),
            ("SHMEM_ROUTE", "put=foo"),
            ("SHMEM_COLL", "reduce:bogus"),
            ("SHMEM_FOO", "1"),
            ("SHMEM_LOG", "debug"),
        ];
        let environment: Environment = wrong.into_iter().collect();
        let told = mistakes(&environment);
        assert_eq!(told.len(), wrong.len() - 1, "{told:#?}");
        for (name, _) in &wrong[..wrong.len() - 1] {
            assert_eq!(told.iter().filter(|line| line.contains(name)).count(), 1, "{told:#?}");
        }
        let each = each(&environment);
        assert_eq!(each.len(), all().count());
        let wrong = each.iter().filter(|(_, row)| row.is_err()).map(|(variable, _)| variable.name);
        assert_eq!(wrong.collect::<Vec<_>>(), ["SHMEM_SYMMETRIC_SIZE", "SHMEM_NTB_LANES"]);
        assert_eq!(mistakes(&Environment::default()), Vec::<String>::new());
    }

    #[test]
    fn a_name_that_does_not_exist_is_noticed_with_the_nearest() {
        for (name, nearest) in [
            ("SHMEM_TRANSPORT", "SHMEM_TRANSPORTS"),
            ("SHMEM_SYMETRIC_SIZE", "SHMEM_SYMMETRIC_SIZE"),
            ("SHMEM_NTB_LANE", "SHMEM_NTB_LANES"),
            ("SMA_INF", "SHMEM_INFO"),
            ("SHMEM_TCP_IFACE", "SHMEM_TCP_INTERFACE"),
            ("SHMEM_TCP_PORT", "SHMEM_TCP_PORTS"),
        ] {
            let [notice] = &noticed(&[(name, "x")])[..] else { panic!("{name}") };
            assert!(notice.contains(&format!("no environment variable {name},")), "{notice}");
            assert!(notice.ends_with(&format!("did you mean {nearest}?")), "{notice}");
        }
        for name in ["SHMEM_XYZZY", "SHMEM_FOO", "SHMEM_HOST"] {
            let far = noticed(&[(name, "1")]);
            assert!(far[0].contains("oshinfo lists"), "{far:?}");
        }
    }

    #[test]
    fn names_that_scripts_set_for_others_are_not_noticed() {
        let others = ["SHMEM_UCX_TLS", "SHMEM_HOME", "SHMEM_BARRIER_ALGORITHM", "SMA_DEBUG"];
        assert_eq!(noticed(&others.map(|name| (name, "1"))), Vec::<String>::new());
        assert!(all().all(|variable| noticed(&[(variable.name, "x")]).is_empty()));
    }

    #[test]
    fn other_names_are_noticed_where_they_count() {
        let old = ("SHMEM_SYMMETRIC_HEAP_SIZE", "1g");
        assert!(noticed(&[old])[0].contains("is another name of SHMEM_SYMMETRIC_SIZE"));
        assert!(noticed(&[old, ("SHMEM_SYMMETRIC_SIZE", "1g")]).is_empty());
        assert!(noticed(&[("SHMEM_NTB_THREADS", "2")])[0].contains("SHMEM_NTB_LANES"));
    }
}
