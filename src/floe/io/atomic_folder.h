// A folder that appears whole or not at all: files go into a temporary one beside it, and commit()
// renames that.
//
//   AtomicFolder folder("out", AtomicFolder::Existing::refuse);
//   write_file_atomically(folder.path() + "/config.json", text);
//   folder.commit();
#pragma once

#include <string>

namespace floe {

class AtomicFolder {
 public:
  enum class Existing { refuse, replace };

  // Creates the temporary folder beside `target`, and the folders above it. Throws ConfigError when
  // there is something of this name and it is not to be replaced.
  AtomicFolder(std::string target, Existing existing);
  // Without a commit the temporary folder is removed and `target` stays as it was.
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  // Of the temporary folder.
  const std::string& path() const { return temporary_; }
  // Renames it to the target; what was there is removed afterwards. The files must be on disk already.
  void commit();

 private:
  std::string target_, temporary_;
  bool committed_ = false;
};

}  // namespace floe
