//! Typed dense indices into a [`Graph`](crate::Graph)'s tables.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The position in its table.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A symbolic dimension.
    SymId, "s"
);
id!(
    /// A value: the result of exactly one node.
    ValueId, "%"
);
id!(
    /// A node.
    NodeId, "n"
);
id!(
    /// A declared weight.
    WeightId, "w"
);
id!(
    /// A linear product that adapters may change.
    SiteId, "site"
);
id!(
    /// A rotary frequency specification.
    RopeId, "rope"
);
