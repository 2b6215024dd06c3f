//! The semantic graph of a transformer: IR, verifier, text form, interpreter (oracle), architectures.
