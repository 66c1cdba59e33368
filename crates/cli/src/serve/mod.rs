//! The long-running roles of the `gantry` binary, each as a process of its own.

pub(crate) mod agent;
mod etcd_args;
pub(crate) mod gateway;
pub(crate) mod kserve_agent;
mod namespace_secrets;
pub(crate) mod operator;
mod replicated;
pub(crate) mod runtime;
pub(crate) mod scheduler;

#[cfg(test)]
mod tests {
    use crate::args::{Cli, Command};
    use clap::Parser as _;

    #[test]
    fn renamed_flags_keep_their_old_names() {
        let parse = |args: &[&str]| Cli::try_parse_from(["gantry"].iter().chain(args)).unwrap().command;
        let Command::Gateway(gateway) = parse(&["gateway", "--linger=3"]) else { panic!() };
        assert_eq!(gateway.shutdown_linger, 3);
        let Command::Agent(agent) = parse(&["agent", "--server-patience=7", "--check-period=2"]) else {
            panic!()
        };
        assert_eq!((agent.server_startup_timeout, agent.health_check_interval), (7, 2));
    }
}
