// SPDX-License-Identifier: Apache-2.0
//! Gives the installed program a number by which debuggers find its symbols.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bin=oshperf=-Wl,--build-id=sha1");
}
