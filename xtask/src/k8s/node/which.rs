//! Which of the machine's nodes: each has a name, an address, a directory, and pods of its own.

use super::super::directory::Directory;
use std::{net::Ipv4Addr, path::PathBuf};

/// A node of this machine. All of them share its kernel, its network and its disk, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// From 1.
    number: u8,
}

/// The node that every cluster with a node has; its address is the API server's too.
pub(crate) const FIRST: Node = Node { number: 1 };
/// Another one, so that pods have somewhere to go.
pub(crate) const SECOND: Node = Node { number: 2 };
/// All that there can be.
pub(crate) const ALL: [Node; 2] = [FIRST, SECOND];

impl Node {
    /// Its name in the cluster.
    pub(crate) fn name(self) -> String {
        format!("node-{}", self.number)
    }

    /// Its address, on a bridge of our own that leads nowhere.
    pub(crate) const fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, 99, self.number)
    }

    /// The addresses that it gives to its pods.
    pub(super) fn pods(self) -> String {
        format!("10.244.{}.0/24", self.number - 1)
    }

    /// Something of its own in a cluster's directory. Names of sockets are short, so this is too.
    pub(super) fn join(self, directory: &Directory, name: &str) -> PathBuf {
        if self == FIRST { directory.join(name) } else { directory.join(&format!("n{}/{name}", self.number)) }
    }

    /// What one of its processes is called.
    pub(super) fn process(self, program: &str) -> String {
        if self == FIRST { program.to_owned() } else { format!("{program}-{}", self.number) }
    }

    /// The cgroup above those of its pods; `None` for the root.
    pub(super) fn cgroup(self) -> Option<String> {
        (self != FIRST).then(|| format!("gantry-{}", self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn nodes_share_nothing_that_has_a_name() {
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
