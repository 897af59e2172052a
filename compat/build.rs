// SPDX-License-Identifier: Apache-2.0
//! Gives the shared library its name and its list of exported symbols.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
    println!("cargo:rerun-if-changed=exports.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={here}/exports.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtombolo.so.0");
    // By which debuggers find the symbols of packages.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--build-id=sha1");
    println!("cargo:rustc-link-arg-bins=-Wl,--build-id=sha1");
    // What runs at exit must still be there at exit, whoever loaded the library and closed it again.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
