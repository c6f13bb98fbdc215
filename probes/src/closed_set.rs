//! The one way in which a closed set is written down: an enum with an `ALL` list and one spelling for each member,
//! used by the store, labels, JSON, messages and documentation alike.

/// Declares an enum of unit members with `ALL`, `as_str`, `Display`, `FromStr` and serde support in one spelling.
///
/// ```
/// lanewarden_probes::closed_set! {
///     /// How the lamp is.
///     pub enum Lamp {
///         /// It shines.
///         On = "on",
///         /// It does not.
///         Off = "off",
///     }
/// }
/// assert_eq!(Lamp::ALL.len(), 2);
/// assert_eq!("off".parse::<Lamp>().unwrap(), Lamp::Off);
/// assert_eq!(Lamp::On.to_string(), "on");
/// assert!("dim".parse::<Lamp>().is_err());
/// ```
#[macro_export]
macro_rules! closed_set {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $( $(#[$member_meta:meta])* $member:ident = $text:literal ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $( $(#[$member_meta])* $member ),+
        }

        impl $name {
            /// Every member, in the order of the design.
            pub const ALL: &'static [Self] = &[ $( Self::$member ),+ ];

            /// The member's one spelling.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$member => $text ),+ }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::UnknownMember;

            fn from_str(text: &str) -> ::std::result::Result<Self, Self::Err> {
                Self::ALL
                    .iter()
                    .copied()
                    .find(|member| member.as_str() == text)
                    .ok_or_else(|| $crate::UnknownMember::new(stringify!($name), text))
            }
        }

        impl $crate::reexport::Serialize for $name {
            fn serialize<S: $crate::reexport::Serializer>(
                &self,
                serializer: S,
            ) -> ::std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> $crate::reexport::Deserialize<'de> for $name {
            fn deserialize<D: $crate::reexport::Deserializer<'de>>(
                deserializer: D,
            ) -> ::std::result::Result<Self, D::Error> {
                let text = <::std::string::String as $crate::reexport::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err($crate::reexport::custom_error)
            }
        }
    };
}

/// A text that names no member of a closed set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a member of {set}")]
pub struct UnknownMember {
    set: &'static str,
    text: String,
}

impl UnknownMember {
    /// Says that `text` names no member of `set`.
    #[must_use]
    pub fn new(set: &'static str, text: &str) -> Self {
        Self { set, text: text.chars().take(80).collect() }
    }
}
