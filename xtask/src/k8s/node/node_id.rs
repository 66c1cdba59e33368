//! Identity of a node: name, address, directory and pod CIDR.

use super::super::directory::Directory;
use std::{net::Ipv4Addr, path::PathBuf};

/// A node of this machine. Nodes share only kernel, network and disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// From 1.
    number: u8,
}

/// The first node; its address is the API server's too.
pub(crate) const FIRST: Node = Node { number: 1 };
/// The second node, for drains.
pub(crate) const SECOND: Node = Node { number: 2 };
pub(crate) const ALL: [Node; 2] = [FIRST, SECOND];

impl Node {
    pub(crate) fn name(self) -> String {
        format!("node-{}", self.number)
    }

    /// Its address, on an isolated bridge.
    pub(crate) const fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, 99, self.number)
    }

    /// Its pod CIDR.
    pub(super) fn pods(self) -> String {
        format!("10.244.{}.0/24", self.number - 1)
    }

    /// Its path in the cluster directory; short, because socket paths are limited.
    pub(super) fn join(self, directory: &Directory, name: &str) -> PathBuf {
        if self == FIRST { directory.join(name) } else { directory.join(&format!("n{}/{name}", self.number)) }
    }

    /// Name of one of its processes.
    pub(super) fn process(self, program: &str) -> String {
        if self == FIRST { program.to_owned() } else { format!("{program}-{}", self.number) }
    }

    /// Parent cgroup of its pods; `None` for the root.
    pub(super) fn cgroup(self) -> Option<String> {
        (self != FIRST).then(|| format!("gantry-{}", self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn nodes_have_distinct_resources() {
        let directory = Directory::at("/tmp/x".as_ref()).unwrap();
        let of = |node: Node| {
            [
                node.name(),
                node.address().to_string(),
                node.pods(),
                node.join(&directory, "kubelet").display().to_string(),
                node.process("kubelet"),
                node.cgroup().unwrap_or_default(),
            ]
        };
        let names: BTreeSet<String> = ALL.iter().flat_map(|node| of(*node)).collect();
        assert_eq!(names.len(), ALL.len() * 6);
    }
}
