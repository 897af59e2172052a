// SPDX-License-Identifier: Apache-2.0
//! Enums of which each variant has a name.

/// Declares such an enum: the list of its variants, and their names.
#[macro_export]
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $text:literal ),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[$vdoc])* $variant ),* }

        impl $name {
            /// All, in order.
            pub const ALL: [$name; [$($text),*].len()] = [$($name::$variant),*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $( $name::$variant => $text ),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
