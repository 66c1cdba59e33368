//! Command line options.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agent {
    /// Executes every order at once.
    Instant,
    None,
}

/// Reading speed of a status subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subscriber {
    Fast,
    /// One message every few milliseconds.
    Slow,
    Never,
}

/// Command line options.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) models: usize,
    pub(crate) in_flight: usize,
    pub(crate) changes: usize,
    pub(crate) rounds: usize,
    pub(crate) agent: Agent,
    pub(crate) gateway: bool,
    pub(crate) subscribers: Vec<Subscriber>,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            models: 10_000,
            in_flight: 64,
            changes: 300,
            rounds: 1,
            agent: Agent::Instant,
            gateway: false,
            subscribers: Vec::new(),
        };
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            if name == "--gateway" {
                options.gateway = true;
                continue;
            }
            let value = rest.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || value.parse().map_err(|_| format!("{name}: {value} is not a number"));
            match name.as_str() {
                "--models" => options.models = number()?,
                "--in-flight" => options.in_flight = number()?,
                "--changes" => options.changes = number()?,
                "--rounds" => options.rounds = number()?,
                "--agent" => {
                    options.agent = match value.as_str() {
                        "instant" => Agent::Instant,
                        "none" => Agent::None,
                        other => return Err(format!("--agent {other}: use instant or none")),
                    }
                }
                "--subscriber" => options.subscribers.push(match value.as_str() {
                    "fast" => Subscriber::Fast,
                    "slow" => Subscriber::Slow,
                    "never" => Subscriber::Never,
                    other => return Err(format!("--subscriber {other}: use fast, slow or never")),
                }),
                other => return Err(format!("unknown option {other}")),
            }
        }
        if options.subscribers.is_empty() {
            options.subscribers.push(Subscriber::Fast);
        }
        Ok(options)
    }
}
