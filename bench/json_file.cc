#include "horon/bench/json_file.h"

#include <ctime>
#include <fstream>
#include <thread>

#include "horon/core/base/replace_file.h"

namespace horon::bench {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

void write_json_file(const std::string& path, const nlohmann::json& content) {
  core::replace_file(path, content.dump(2) + "\n");
}

nlohmann::json describe_machine() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  gmtime_r(&now, &date);
  char text[16] = {};
  (void)std::strftime(text, sizeof(text), "%Y-%m-%d", &date);
  return {{"cpu", cpu_name()}, {"cores", std::thread::hardware_concurrency()}, {"date", text}};
}

}  // namespace horon::bench
