// Writes results as JSON files, with a description of the machine.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace horon::bench {

// As core::replace_file().
void write_json_file(const std::string& path, const nlohmann::json& content);

// {"cpu": ..., "cores": ..., "date": "2026-01-31"}
nlohmann::json describe_machine();

}  // namespace horon::bench
