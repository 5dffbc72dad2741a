//! What the program is asked, and what it answers.

use crate::names::{LEVELS, REQUESTS};
use std::collections::BTreeMap;

/// An option by its level and number, or a request by `ioctl` and its number, as the program names them.
pub type Key = (String, String);

/// A state's name and an option: the words of the answer.
#[derive(Clone, Debug, Default)]
pub struct Answers(BTreeMap<(Key, String), Vec<String>>);

/// Where the stacks part.
#[derive(Debug)]
pub struct Difference {
    pub name: String,
    #[expect(dead_code, reason = "shown when the test fails")]
    state: String,
    #[expect(dead_code, reason = "shown when the test fails")]
    kernel_engine: Vec<(String, String)>,
}

/// A line for each option and request.
pub fn questions() -> String {
    let options = LEVELS.iter().flat_map(|(_, level, options)| {
        options.iter().map(move |o| format!("{level} {} {}\n", o.number, u8::from(o.compared)))
    });
    let requests = REQUESTS.iter().map(|(_, number)| format!("ioctl {number}\n"));
    options.chain(requests).collect()
}

/// What an option or request is called.
fn name_of(key: &Key) -> String {
    let found = match key.0.as_str() {
        "ioctl" => REQUESTS.iter().find(|(_, number)| number.to_string() == key.1).map(|(name, _)| *name),
        level => LEVELS
            .iter()
            .find(|(_, number, _)| number.to_string() == level)
            .and_then(|(_, _, options)| options.iter().find(|o| o.number.to_string() == key.1))
            .map(|option| option.name),
    };
    found.unwrap_or("?").to_owned()
}

impl Answers {
    pub fn parse(output: &str) -> Answers {
        let mut answers = BTreeMap::new();
        for line in output.lines() {
            let (head, answer) = line.split_once(" | ").unwrap_or_else(|| panic!("an answer: {line}"));
            let [state, level, number] = head.split(' ').collect::<Vec<_>>()[..] else { panic!("{head}") };
            let words = answer.split(' ').filter(|word| *word != "|").map(str::to_owned).collect();
            answers.insert(((level.to_owned(), number.to_owned()), state.to_owned()), words);
        }
        Answers(answers)
    }

    /// What is answered in a state.
    pub fn of(&self, level: &str, number: i64, state: &str) -> &[String] {
        let key = ((level.to_owned(), number.to_string()), state.to_owned());
        self.0.get(&key).map_or(&[], Vec::as_slice)
    }

    pub fn differences(&self, engine: &Answers) -> Vec<Difference> {
        let differs = |((key, state), kernel): (&(Key, String), &Vec<String>)| {
            let engine = engine.0.get(&(key.clone(), state.clone())).cloned().unwrap_or_default();
            let kernel_engine: Vec<_> = kernel
                .iter()
                .zip(engine.iter())
                .filter(|(kernel, engine)| kernel != engine)
                .map(|(kernel, engine)| (kernel.clone(), engine.clone()))
                .collect();
            let same = kernel_engine.is_empty() && kernel.len() == engine.len();
            (!same).then(|| Difference { name: name_of(key), state: state.clone(), kernel_engine })
        };
        self.0.iter().filter_map(differs).collect()
    }
}
