//! How large a file, a struct and the newcomer's reading path may be.

use crate::{SourceFile, SourceTree};

/// A longer file is not read.
const FILE_LINES_MAX: usize = 700;
/// A struct of the rules or the application with more fields has more than one responsibility.
const STRUCT_FIELDS_MAX: usize = 12;
/// What ARCHITECTURE.md promises to be read in fifteen minutes.
const PATH_LINES_MAX: usize = 900;

pub fn long_files(tree: &SourceTree) -> Vec<String> {
    let folders = ["crates", "examples", "proof", "tools", "verification"];
    let files = tree.files_in(&folders, "rs");
    files
        .filter_map(|file| {
            let lines = file.text.lines().count();
            (lines > FILE_LINES_MAX)
                .then(|| format!("{} has {lines} lines (at most {FILE_LINES_MAX})", file.path))
        })
        .collect()
}

pub fn large_structs(tree: &SourceTree) -> Vec<String> {
    let files = tree.files_in(&["crates/domain", "crates/engine"], "rs");
    files
        .filter(|file| !file.is_test())
        .flat_map(large_structs_of)
        .collect()
}

fn large_structs_of(file: &SourceFile) -> Vec<String> {
    let parsed = syn::parse_file(&file.text);
    let parsed = parsed.unwrap_or_else(|error| panic!("{} does not parse: {error}", file.path));
    let mut found = Vec::new();
    collect_structs(&parsed.items, &mut |item: &syn::ItemStruct| {
        let fields = item.fields.len();
        if fields > STRUCT_FIELDS_MAX {
            found.push(format!(
                "{}: struct {} has {fields} fields (at most {STRUCT_FIELDS_MAX}): split it by responsibility",
                file.path, item.ident
            ));
        }
    });
    found
}

fn collect_structs(items: &[syn::Item], visit: &mut impl FnMut(&syn::ItemStruct)) {
    for item in items {
        if let syn::Item::Struct(item) = item {
            visit(item);
        } else if let syn::Item::Mod(syn::ItemMod {
            content: Some((_, items)),
            ..
        }) = item
        {
            collect_structs(items, visit);
        }
    }
}

/// The lines of the files that ARCHITECTURE.md names in its "Fifteen minutes" sentence.
pub fn reading_path(tree: &SourceTree) -> Vec<String> {
    let text_of = |path: &str| {
        tree.files
            .iter()
            .find(|file| file.path == path)
            .map(|file| &file.text)
    };
    let Some(page) = text_of("ARCHITECTURE.md") else {
        return vec!["ARCHITECTURE.md is missing".to_owned()];
    };
    let sentence = page
        .split("\n\n")
        .find(|paragraph| paragraph.starts_with("Fifteen minutes"));
    let Some(sentence) = sentence else {
        return vec![
            "ARCHITECTURE.md has no paragraph that starts with \"Fifteen minutes\"".to_owned(),
        ];
    };
    let named = sentence.split(['`', '(', ')', '[', ']']);
    let named = named.filter(|part| part.ends_with(".rs") || part.ends_with(".md"));
    let mut paths: Vec<&str> = std::iter::once("ARCHITECTURE.md").chain(named).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut found = Vec::new();
    let mut lines = 0;
    for path in paths {
        match text_of(path) {
            Some(text) => lines += text.lines().count(),
            None => found.push(format!(
                "ARCHITECTURE.md names {path}, which does not exist"
            )),
        }
    }
    if lines > PATH_LINES_MAX {
        found.push(format!(
            "the fifteen-minute path has {lines} lines (at most {PATH_LINES_MAX})"
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_with_too_many_fields_is_reported() {
        let fields: String = (0..20).map(|n| format!("f{n}: u8,")).collect();
        let text = format!("struct Fine {{ a: u8 }} mod inner {{ struct Large {{ {fields} }} }}");
        let file = SourceFile {
            path: "crates/domain/src/lane/mod.rs".into(),
            text,
        };
        let found = large_structs(&SourceTree { files: vec![file] });
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("struct Large has 20 fields"), "{found:?}");
    }
}
